package kafka

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var update = flag.Bool("update", false, "write SUPPORT.md")

// SUPPORT.md is what the table of handlers and their comments say: every key of
// Kafka, with what is served of it, or why it is not.
func TestSupportPage(t *testing.T) {
	const name = "SUPPORT.md"
	want := supportPage(t, newHandlers(newMetrics()), handlerComments(t))
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil { //nolint:gosec // a page to read
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale: run go generate ./api/kafka\n%s", name, firstDifference(string(got), want))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n has  %s\n want %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// handlerComment is what the comment over a handler says.
type handlerComment struct {
	name     string
	min, max int16
	leftOut  string
}

var commentStart = regexp.MustCompile(`^(\w+) \(key (\d+)\), versions? (\d+)(?: (?:to|and) (\d+))?`)

// handlerComments reads the comments of the files that are named by a key.
func handlerComments(t *testing.T) map[int16]handlerComment {
	t.Helper()
	files, err := fs.Glob(os.DirFS("."), "[0-9][0-9]_*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int16]handlerComment{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range file.Comments {
			key, c, ok := readComment(group)
			if !ok {
				continue
			}
			if _, twice := out[key]; twice || !strings.HasPrefix(name, fmt.Sprintf("%02d_", key)) {
				t.Errorf("%s: the comment of key %d", name, key)
			}
			out[key] = c
		}
	}
	return out
}

func readComment(group *ast.CommentGroup) (key int16, c handlerComment, ok bool) {
	text := group.Text()
	m := commentStart.FindStringSubmatch(text)
	if m == nil {
		return 0, c, false
	}
	number := func(s string) int16 {
		n, err := strconv.ParseInt(s, 10, 16)
		ok = ok && err == nil
		return int16(n)
	}
	ok = true
	c.name, key, c.min = m[1], number(m[2]), number(m[3])
	if c.max = c.min; m[4] != "" {
		c.max = number(m[4])
	}
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		rest, found := strings.CutPrefix(paragraph, "Left out: ")
		switch {
		case found:
			c.leftOut = sentence(rest)
		case strings.Contains(paragraph, "Left out"):
			ok = false // it would not be seen
		}
	}
	return key, c, ok
}

// sentence is a paragraph in one line, with a capital.
func sentence(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.ToUpper(s[:1]) + s[1:]
}

// supportPage makes the page and checks that all it is made of fits together.
func supportPage(t *testing.T, hs *handlers, comments map[int16]handlerComment) string {
	t.Helper()
	var served, unserved strings.Builder
	for key := range int16(maxKey + 1) {
		k, ok := kafkaAPIs[key]
		req := kmsg.RequestForKey(key)
		if !ok || req == nil || req.MaxVersion() != k.max && k.why != removed {
			t.Fatalf("key %d is %+v in the table of Kafka's, and has other versions", key, k)
		}
		theirs := span(k.min, k.max)
		h, c := hs.find(key), comments[key]
		if h == nil {
			if k.why == "" {
				t.Errorf("key %d, %s, is not served, and nobody says why", key, k.name)
			}
			if k.why == removed {
				theirs = "none"
			}
			fmt.Fprintf(&unserved, "| %d | %s | %s | %s |\n", key, k.name, theirs, k.why)
			continue
		}
		if k.why != "" || k.name != h.name || c.name != h.name || c.min != h.accept || c.max != h.max {
			t.Errorf("key %d: the handler is %s %d to %d, its comment %+v, the table %+v", key, h.name, h.accept, h.max, c, k)
		}
		for version := h.max + 1; version <= k.max; version++ {
			if !regexp.MustCompile(fmt.Sprintf(`(?i)versions? (\d+ and )?%d\b`, version)).MatchString(c.leftOut) {
				t.Errorf("%s: its comment does not say why version %d is left out", h.name, version)
			}
		}
		if c.leftOut == "" {
			c.leftOut = "Nothing."
		}
		ours := span(h.accept, h.max)
		if h.min < h.accept {
			ours += fmt.Sprintf(" (%s advertised only)", span(h.min, h.accept-1))
		}
		fmt.Fprintf(&served, "| %d | %s | %s | %s | %s |\n", key, h.name, ours, theirs, c.leftOut)
	}
	return fmt.Sprintf(supportText, served.String(), unserved.String())
}

func span(low, high int16) string {
	if low == high {
		return strconv.Itoa(int(low))
	}
	return fmt.Sprintf("%d–%d", low, high)
}

const supportText = `# What the Kafka door serves

This page is made by ` + "`go generate ./api/kafka`" + ` from the table in handlers.go and from the comments over the handlers, and a
test fails when it is not what they say. Kafka's versions are those of a broker of the 4.x line, up to 4.4.

ApiVersions advertises what is served and nothing else, with one exception: Produce is advertised from 0, as Kafka does, because
librdkafka before 2.11 compresses nothing otherwise. Any other key or version closes the connection, as it does with Kafka; only
ApiVersions of a newer version is answered, with UNSUPPORTED_VERSION and the table. The time of throttling is that of the broker configs quota.producer.default, quota.consumer.default and leat.quota.requests.default, for each principal and after the answer in every version; it is at most 10 s.

## Served

| key | API | versions | Kafka 4.x | left out, and why |
|--|--|--|--|--|
%s
## Not served

| key | API | Kafka 4.x | why |
|--|--|--|--|
%s`

// kafkaAPI is an API of Kafka: its name, the versions of brokers of the 4.x line,
// and why it is not served, if it is not.
type kafkaAPI struct {
	name     string
	min, max int16
	why      string
}

// Why APIs are not served.
const (
	removed      = "Kafka has none since 4.0: it was for brokers that are led by ZooKeeper."
	transactions = "There are no transactions yet."
	sasl         = "There is no authentication on this door yet; a client that finds none of it speaks plain Kafka."
	acls         = "There are no access control lists yet."
	quotas       = "Quotas are configs of the broker, the same for each principal."
	tokens       = "There is no authentication on this door yet, so there is nobody to give a token to."
	oneReplica   = "One node has nowhere to move a replica to."
	quorum       = "Servers of Kafka's own quorum (KRaft) ask it of one another."
	brokers      = "Kafka's brokers ask it of one another or of their controller."
	raft         = "It is about Kafka's own quorum (KRaft), which there is not."
	newGroups    = "Groups are of the classic protocol; clients use that one unless they are told otherwise."
	telemetry    = "Clients begin to push metrics as soon as they find it, and nobody would read them."
	shareGroups  = "There are no share groups."
	streams      = "There are no groups of Kafka Streams' own protocol; Streams uses the classic one."
)

// kafkaAPIs are all there are.
var kafkaAPIs = map[int16]kafkaAPI{
	0: {"Produce", 0, 13, ""}, 1: {"Fetch", 4, 18, ""}, 2: {"ListOffsets", 1, 11, ""}, 3: {"Metadata", 0, 13, ""},
	4: {"LeaderAndIsr", 0, 0, removed}, 5: {"StopReplica", 0, 0, removed}, 6: {"UpdateMetadata", 0, 0, removed}, 7: {"ControlledShutdown", 0, 0, removed},
	8: {"OffsetCommit", 2, 10, ""}, 9: {"OffsetFetch", 1, 10, ""}, 10: {"FindCoordinator", 0, 6, ""}, 11: {"JoinGroup", 0, 9, ""},
	12: {"Heartbeat", 0, 4, ""}, 13: {"LeaveGroup", 0, 5, ""}, 14: {"SyncGroup", 0, 5, ""}, 15: {"DescribeGroups", 0, 6, ""}, 16: {"ListGroups", 0, 5, ""},
	17: {"SaslHandshake", 0, 1, sasl}, 18: {"ApiVersions", 0, 5, ""},
	19: {"CreateTopics", 2, 7, ""}, 20: {"DeleteTopics", 1, 6, ""}, 21: {"DeleteRecords", 0, 2, ""}, 22: {"InitProducerId", 0, 5, ""},
	23: {"OffsetForLeaderEpoch", 2, 4, ""},
	24: {"AddPartitionsToTxn", 0, 5, transactions}, 25: {"AddOffsetsToTxn", 0, 4, transactions}, 26: {"EndTxn", 0, 5, transactions},
	27: {"WriteTxnMarkers", 1, 2, transactions}, 28: {"TxnOffsetCommit", 0, 6, transactions},
	29: {"DescribeAcls", 1, 3, acls}, 30: {"CreateAcls", 1, 3, acls}, 31: {"DeleteAcls", 1, 3, acls},
	32: {"DescribeConfigs", 1, 4, ""}, 33: {"AlterConfigs", 0, 2, ""},
	34: {"AlterReplicaLogDirs", 1, 2, "There is one data directory, so nothing can be moved to another."},
	35: {"DescribeLogDirs", 1, 5, ""}, 36: {"SaslAuthenticate", 0, 2, sasl}, 37: {"CreatePartitions", 0, 3, ""},
	38: {"CreateDelegationToken", 1, 3, tokens}, 39: {"RenewDelegationToken", 1, 2, tokens},
	40: {"ExpireDelegationToken", 1, 2, tokens}, 41: {"DescribeDelegationToken", 1, 3, tokens},
	42: {"DeleteGroups", 0, 3, ""}, 43: {"ElectLeaders", 0, 2, ""}, 44: {"IncrementalAlterConfigs", 0, 1, ""},
	45: {"AlterPartitionReassignments", 0, 1, oneReplica}, 46: {"ListPartitionReassignments", 0, 0, ""}, 47: {"OffsetDelete", 0, 0, ""},
	48: {"DescribeClientQuotas", 0, 1, quotas}, 49: {"AlterClientQuotas", 0, 1, quotas},
	50: {"DescribeUserScramCredentials", 0, 0, sasl}, 51: {"AlterUserScramCredentials", 0, 0, sasl},
	52: {"Vote", 0, 2, quorum}, 53: {"BeginQuorumEpoch", 0, 1, quorum}, 54: {"EndQuorumEpoch", 0, 1, quorum},
	55: {"DescribeQuorum", 0, 2, raft}, 56: {"AlterPartition", 0, 3, brokers},
	57: {"UpdateFeatures", 0, 2, "There are no features that could be switched on."},
	58: {"Envelope", 0, 0, brokers}, 59: {"FetchSnapshot", 0, 1, quorum},
	60: {"DescribeCluster", 0, 2, ""}, 61: {"DescribeProducers", 0, 0, ""},
	62: {"BrokerRegistration", 0, 4, brokers}, 63: {"BrokerHeartbeat", 0, 2, brokers},
	64: {"UnregisterBroker", 0, 0, "There is one node, and it does not leave."},
	65: {"DescribeTransactions", 0, 0, transactions}, 66: {"ListTransactions", 0, 2, transactions},
	67: {"AllocateProducerIds", 0, 0, brokers},
	68: {"ConsumerGroupHeartbeat", 0, 1, newGroups}, 69: {"ConsumerGroupDescribe", 0, 1, newGroups},
	70: {"ControllerRegistration", 0, 0, quorum},
	71: {"GetTelemetrySubscriptions", 0, 0, telemetry}, 72: {"PushTelemetry", 0, 0, telemetry},
	73: {"AssignReplicasToDirs", 0, 0, brokers}, 74: {"ListConfigResources", 0, 1, ""}, 75: {"DescribeTopicPartitions", 0, 0, ""},
	76: {"ShareGroupHeartbeat", 1, 1, shareGroups}, 77: {"ShareGroupDescribe", 1, 1, shareGroups},
	78: {"ShareFetch", 1, 2, shareGroups}, 79: {"ShareAcknowledge", 1, 2, shareGroups},
	80: {"AddRaftVoter", 0, 1, raft}, 81: {"RemoveRaftVoter", 0, 0, raft}, 82: {"UpdateRaftVoter", 0, 0, quorum},
	83: {"InitializeShareGroupState", 0, 0, brokers}, 84: {"ReadShareGroupState", 0, 0, brokers}, 85: {"WriteShareGroupState", 0, 1, brokers},
	86: {"DeleteShareGroupState", 0, 0, brokers}, 87: {"ReadShareGroupStateSummary", 0, 1, brokers},
	88: {"StreamsGroupHeartbeat", 0, 1, streams}, 89: {"StreamsGroupDescribe", 0, 1, streams},
	90: {"DescribeShareGroupOffsets", 0, 1, shareGroups}, 91: {"AlterShareGroupOffsets", 0, 0, shareGroups}, 92: {"DeleteShareGroupOffsets", 0, 0, shareGroups},
	93: {"StreamsGroupTopologyDescriptionUpdate", 0, 0, streams}, 94: {"UnregisterController", 0, 0, quorum},
}
