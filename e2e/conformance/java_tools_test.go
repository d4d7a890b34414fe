package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// toolTests are the command-line tools.
var toolTests = []javaTest{
	{"kafka-topics: create, list, describe, alter, delete", topicsTool},
	{"kafka-configs: alter and describe a topic, describe the broker", configsTool},
	{"kafka-console-producer and -consumer: keys, headers, a codec", consoleTools},
	{"kafka-consumer-groups: list, describe, reset, delete", groupsTool},
	{"kafka-console-consumer: what __consumer_offsets says", offsetsTopic},
	{"kafka-get-offsets", getOffsetsTool},
	{"kafka-delete-records", deleteRecordsTool},
	{"kafka-log-dirs", logDirsTool},
	{"kafka-cluster: id, endpoints", clusterTool},
	{"kafka-broker-api-versions", apiVersionsTool},
	{"kafka-leader-election", leaderElectionTool},
	{"kafka-reassign-partitions: list", reassignTool},
	{"kafka-transactions: describe producers", producersTool},
	{"kafka-verifiable-producer and -consumer", verifiableTools},
	{"kafka-verifiable-consumer: one of two is killed", verifiableKill},
	{"kafka-producer- and -consumer-perf-test", perfTools},
	{"kafka-e2e-latency", latencyTool},
}

func topicsTool(j *java) error {
	const topic = "topics-tool"
	topics := func(words []string, args ...string) error { return j.says(words, "TopicCommand", args...) }
	if err := topics([]string{"Created topic " + topic}, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000"); err != nil {
		return err
	}
	if err := topics([]string{topic}, "--list"); err != nil {
		return err
	}
	if err := topics([]string{"PartitionCount: 3 ReplicationFactor: 1 Configs: retention.ms=3600000", "Partition: 2 Leader: 1 Replicas: 1 Isr: 1"}, "--describe", "--topic", topic); err != nil {
		return err
	}
	if err := topics(nil, "--alter", "--topic", topic, "--partitions", "5"); err != nil {
		return err
	}
	if err := topics([]string{"PartitionCount: 5"}, "--describe", "--topic", topic); err != nil {
		return err
	}
	if err := topics(nil, "--delete", "--topic", topic); err != nil {
		return err
	}
	return j.silent(topic, "TopicCommand", "--list")
}

func configsTool(j *java) error {
	const topic = "configs-tool"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	configs := func(words []string, kind, name string, args ...string) error {
		return j.says(words, "ConfigCommand", append([]string{"--entity-type", kind, "--entity-name", name}, args...)...)
	}
	if err := configs([]string{"Completed"}, "topics", topic, "--alter", "--add-config", "retention.ms=60000,max.message.bytes=2000000"); err != nil {
		return err
	}
	if err := configs([]string{"max.message.bytes=2000000", "DYNAMIC_TOPIC_CONFIG:retention.ms=60000, DEFAULT_CONFIG:log.retention.ms=604800000"}, "topics", topic, "--describe"); err != nil {
		return err
	}
	if err := configs([]string{"Completed"}, "topics", topic, "--alter", "--delete-config", "retention.ms"); err != nil {
		return err
	}
	if err := configs([]string{"max.message.bytes=2000000", " retention.ms=604800000"}, "topics", topic, "--describe", "--all"); err != nil {
		return err
	}
	return configs([]string{"group.initial.rebalance.delay.ms=100 ", "advertised.listeners=PLAINTEXT://" + j.addr}, "brokers", "1", "--describe", "--all")
}

func consoleTools(j *java) error {
	const topic = "console-tools"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	var lines, want []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("h:%d,twice:a,twice:b\tkey-%d\tvalue %d of many\n", i, i, i))
		want = append(want, fmt.Sprintf("Partition:0\tOffset:%d\th:%d,twice:a,twice:b\tkey-%d\tvalue %d of many", i, i, i, i))
	}
	_, err := j.run(strings.Join(lines, ""), "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", j.addr, "--topic", topic,
		"--compression-codec", "zstd", "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
	if err != nil {
		return err
	}
	got, err := j.consoleLines(topic, len(want), "--formatter-property", "print.key=true", "--formatter-property", "print.headers=true",
		"--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true")
	if err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// consoleLines is what the console consumer prints of the first n records of a topic.
func (j *java) consoleLines(topic string, n int, args ...string) ([]string, error) {
	out, err := j.tool("consumer.ConsoleConsumer", append([]string{
		"--topic", topic, "--from-beginning", "--max-messages", fmt.Sprint(n), "--timeout-ms", "30000",
	}, args...)...)
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(out) {
		// The tool praises another group protocol before the first record.
		if line = strings.TrimSuffix(line, "\n"); !strings.Contains(line, "KIP-848") {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

func groupsTool(j *java) error {
	const topic, group = "groups-tool", "groups-tool"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	if err := j.oracle.write(j.ctx, "none", topic, 0, sample(topic, 10)); err != nil {
		return err
	}
	groups := func(words []string, args ...string) error {
		return j.says(words, "consumer.group.ConsumerGroupCommand", args...)
	}
	if _, err := j.consoleLines(topic, 4, "--group", group); err != nil {
		return err
	}
	steps := []struct {
		words []string
		args  []string
	}{
		{[]string{group}, []string{"--list"}},
		{[]string{"Empty 0"}, []string{"--describe", "--group", group, "--state"}},
		{[]string{group + " " + topic + " 0 4 10 6 - - -"}, []string{"--describe", "--group", group}},
		{[]string{group + " " + topic + " 0 7"}, []string{"--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "7", "--execute"}},
		{[]string{group + " " + topic + " 0 7 10 3 - - -"}, []string{"--describe", "--group", group}},
		{[]string{"Request succeeded", topic + " 0 Successful"}, []string{"--delete-offsets", "--group", group, "--topic", topic}},
		{[]string{"was successful"}, []string{"--delete", "--group", group}},
	}
	for _, step := range steps {
		if err := groups(step.words, step.args...); err != nil {
			return err
		}
	}
	return j.silent(group, "GroupsCommand", "--list")
}

// offsetsTopic proves that __consumer_offsets has Kafka's own records: Kafka's formatters read what a group has left there.
func offsetsTopic(j *java) error {
	const topic, group = "offsets-topic", "offsets-group"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	if err := j.oracle.write(j.ctx, "none", topic, 0, sample(topic, 5)); err != nil {
		return err
	}
	if _, err := j.consoleLines(topic, 5, "--group", group); err != nil {
		return err
	}
	for formatter, words := range map[string][]string{
		"OffsetsMessageFormatter":       {`{"group":"` + group + `","topic":"` + topic + `","partition":0}}`, `"offset":5,`},
		"GroupMetadataMessageFormatter": {`{"group":"` + group + `"}}`, `"protocolType":"consumer","generation":1,"protocol":"range"`, `"clientId":"console-consumer","clientHost":"/127.0.0.1"`},
	} {
		// The consumer of the group may not end before its time, because nobody knows how many records there are.
		cmd := j.command("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", j.addr, "--topic", "__consumer_offsets",
			"--from-beginning", "--timeout-ms", "5000", "--formatter", "org.apache.kafka.tools.consumer."+formatter)
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		if err := hasAll(string(out), words...); err != nil {
			return err
		}
	}
	return nil
}

func getOffsetsTool(j *java) error {
	const topic = "get-offsets-tool"
	if err := j.oracle.create(j.ctx, topic, 2); err != nil {
		return err
	}
	records := sample(topic, 8)
	for i := range records {
		records[i].Timestamp = 1_700_000_000_000 + int64(i)*1000
	}
	if err := j.oracle.write(j.ctx, "gzip", topic, 1, records); err != nil {
		return err
	}
	for when, want := range map[string]string{
		"earliest": topic + ":0:0 " + topic + ":1:0", "latest": topic + ":0:0 " + topic + ":1:8",
		"max-timestamp": topic + ":1:7", "1700000002500": topic + ":1:3",
	} {
		out, err := j.tool("GetOffsetShell", "--topic", topic, "--time", when)
		if err != nil {
			return err
		}
		if got := strings.Join(strings.Fields(out), " "); got != want {
			return fmt.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	return nil
}

func deleteRecordsTool(j *java) error {
	const topic = "delete-records-tool"
	if err := j.oracle.create(j.ctx, topic, 2); err != nil {
		return err
	}
	for partition := range int32(2) {
		if err := j.oracle.write(j.ctx, "none", topic, partition, sample(topic, 9)); err != nil {
			return err
		}
	}
	path, err := j.file("offsets.json", `{"version":1,"partitions":[{"topic":"`+topic+`","partition":0,"offset":4},{"topic":"`+topic+`","partition":1,"offset":-1}]}`)
	if err != nil {
		return err
	}
	return j.says([]string{topic + "-0 low_watermark: 4", topic + "-1 low_watermark: 9"}, "DeleteRecordsCommand", "--offset-json-file", path)
}

func logDirsTool(j *java) error {
	const topic = "log-dirs-tool"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	if err := j.oracle.write(j.ctx, "none", topic, 0, sample(topic, 10)); err != nil {
		return err
	}
	out, err := j.tool("LogDirsCommand", "--describe", "--topic-list", topic)
	if err != nil {
		return err
	}
	var found struct {
		Brokers []struct {
			LogDirs []struct {
				Partitions []struct {
					Partition string
					Size      int64
				}
			}
		}
	}
	_, text, _ := strings.Cut(out, "\n{")
	if err := json.Unmarshal([]byte("{"+text), &found); err != nil {
		return fmt.Errorf("%w in %q", err, out)
	}
	if len(found.Brokers) != 1 || len(found.Brokers[0].LogDirs) != 1 || len(found.Brokers[0].LogDirs[0].Partitions) != 1 {
		return fmt.Errorf("want one partition in one directory: %s", out)
	}
	if p := found.Brokers[0].LogDirs[0].Partitions[0]; p.Partition != topic+"-0" || p.Size < 1000 {
		return fmt.Errorf("want the size of %s-0: %s", topic, out)
	}
	return nil
}

func clusterTool(j *java) error {
	meta, err := j.oracle.admin.BrokerMetadata(j.ctx)
	if err != nil {
		return err
	}
	id, err := j.run("", "org.apache.kafka.tools.ClusterTool", "cluster-id", "--bootstrap-server", j.addr)
	if err != nil {
		return err
	}
	if err := hasAll(id, "Cluster ID: "+meta.Cluster); err != nil {
		return err
	}
	out, err := j.run("", "org.apache.kafka.tools.ClusterTool", "list-endpoints", "--bootstrap-server", j.addr)
	if err != nil {
		return err
	}
	host, port, _ := strings.Cut(j.addr, ":")
	return hasAll(out, "1 "+host+" "+port)
}

func apiVersionsTool(j *java) error {
	return j.says([]string{j.addr + " (id: 1 ", "Produce(0): 0 to ", "ApiVersions(18): 0 to "}, "BrokerApiVersionsCommand")
}

func leaderElectionTool(j *java) error {
	if err := j.oracle.create(j.ctx, "leader-election-tool", 2); err != nil {
		return err
	}
	return j.says(nil, "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
}

func reassignTool(j *java) error {
	return j.says([]string{"No partition reassignments found."}, "reassign.ReassignPartitionsCommand", "--list")
}

func producersTool(j *java) error {
	const topic = "producers-tool"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	// The reference client is idempotent, so that the partition knows it.
	if err := j.oracle.write(j.ctx, "none", topic, 0, sample(topic, 7)); err != nil {
		return err
	}
	out, err := j.run("", "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", j.addr, "describe-producers", "--topic", topic, "--partition", "0")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		return fmt.Errorf("want one producer:\n%s", out)
	}
	// ProducerId, ProducerEpoch, LatestCoordinatorEpoch, LastSequence, LastTimestamp, CurrentTransactionStartOffset
	if fields := strings.Fields(lines[1]); len(fields) != 6 || fields[1] != "0" || fields[3] != "6" || fields[5] != "None" {
		return fmt.Errorf("want epoch 0, sequence 6 and no transaction:\n%s", out)
	}
	return nil
}

func perfTools(j *java) error {
	const topic, n = "perf-tools", "100000"
	if err := j.oracle.create(j.ctx, topic, 3); err != nil {
		return err
	}
	out, err := j.run("", "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", j.addr, "--topic", topic, "--num-records", n,
		"--record-size", "100", "--throughput", "-1", "--command-property", "acks=all", "--command-property", "compression.type=lz4")
	if err != nil {
		return err
	}
	if err := hasAll(out, n+" records sent"); err != nil {
		return err
	}
	out, err = j.tool("ConsumerPerformance", "--topic", topic, "--num-records", n)
	if err != nil {
		return err
	}
	return hasAll(out, ", "+n+", ")
}

func latencyTool(j *java) error {
	const topic = "latency-tool"
	if err := j.oracle.create(j.ctx, topic, 1); err != nil {
		return err
	}
	return j.says([]string{"Avg latency:", "Percentiles:"}, "EndToEndLatency", "--topic", topic, "--num-records", "200", "--producer-acks", "all", "--record-size", "100")
}
