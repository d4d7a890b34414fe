// Package api is what the front doors share: the one table that says how an
// error of the domain looks on the wire, as a Kafka error code and as an HTTP
// status with a slug.
//
// It knows no protocol's framing and does no I/O. Only the packages below it
// (api/kafka, api/rest, api/ws) and main import it; it imports broker.
package api
