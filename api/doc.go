// Package api is what the front doors share: the one table that says how an
// error of the domain looks on the wire, as a Kafka error code and as an HTTP
// status with a slug; and what the two JSON doors have in common, so that a
// record, a position and an error look the same through both.
//
//   - Problem is an error as their clients see it.
//   - Records collects the records of a request, which ParseJSON, ParseNDJSON
//     and ParseLines read; AppendRecord writes a record.
//   - Walk and PlanSection go over the stored batches of a fetch.
//   - Cursor and Place are positions in a topic, as text and in words.
//   - Feed makes the text of records once for all streams at the same place.
//   - Origins are the pages that may call.
//
// It frames no protocol, opens no file and no connection, and starts no
// goroutine; a Feed has a timer while it keeps text. Only the packages below it
// (api/kafka, api/rest, api/ws) and main import it; it imports auth, broker and
// storage/record.
package api
