import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Drives Apache Kafka's own client for the conformance tests: asks come in on stdin and replies go out on stdout, one
 * JSON object a line.
 */
public final class Drive implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int PATIENCE = 30_000; // milliseconds that an operation may take

    private final String bootstrap = System.getenv("LEAT_BOOTSTRAP");
    private Admin adminClient;
    private KafkaConsumer<byte[], byte[]> member;
    private int revoked;

    /** The client has no way to do what was asked. */
    private static final class NotOffered extends Exception {
        NotOffered(String why) {
            super(why);
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        try (Drive drive = new Drive()) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.println(drive.answer(JSON.readTree(line)));
            }
        }
    }

    private ObjectNode answer(JsonNode ask) {
        ObjectNode reply = JSON.createObjectNode();
        try {
            operate(ask, reply);
        } catch (NotOffered e) {
            reply.put("not_offered", e.getMessage());
        } catch (Exception e) {
            e.printStackTrace();
            Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
            reply.removeAll().put("error", Errors.forException(cause).name() + ": " + cause);
        }
        return reply;
    }

    @Override
    public void close() {
        if (member != null) {
            member.close();
        }
        if (adminClient != null) {
            adminClient.close();
        }
    }

    private void operate(JsonNode ask, ObjectNode reply) throws Exception {
        String op = ask.get("op").asText();
        switch (op) {
            case "hello" -> {
                Properties about = new Properties();
                about.load(Admin.class.getResourceAsStream("/kafka/kafka-version.properties"));
                reply.put("version", about.getProperty("version"));
            }
            case "metadata" -> metadata(reply);
            case "produce" -> produce(ask);
            case "read" -> read(ask, reply);
            case "join" -> join(ask);
            case "poll" -> poll(reply);
            case "commit" -> member.commitSync(Duration.ofMillis(PATIENCE));
            case "leave" -> leave();
            case "create_topic" -> createTopic(ask);
            case "delete_topic" -> done(admin().deleteTopics(List.of(topic(ask))).all());
            case "create_partitions" -> done(
                admin().createPartitions(Map.of(topic(ask), NewPartitions.increaseTo(ask.get("partitions").asInt()))).all());
            case "describe_configs" -> describeConfigs(ask, reply);
            case "alter_configs" -> alterConfigs(ask);
            // Gone from the client since 4.0.
            case "replace_configs" -> throw new NotOffered("no alterConfigs since 4.0");
            case "delete_records" -> done(
                admin().deleteRecords(Map.of(partition(ask), RecordsToDelete.beforeOffset(ask.get("offset").asLong()))).all());
            case "list_offset" -> reply.put("offset", listOffset(ask));
            case "list_groups" -> {
                ArrayNode groups = reply.putArray("groups");
                for (GroupListing group : done(admin().listGroups().all())) {
                    groups.add(group.groupId());
                }
            }
            case "describe_group" -> {
                String group = group(ask);
                ConsumerGroupDescription found = done(admin().describeConsumerGroups(List.of(group)).all()).get(group);
                reply.put("state", found.groupState().toString()).put("members", found.members().size());
            }
            case "delete_group" -> done(admin().deleteConsumerGroups(List.of(group(ask))).all());
            case "commit_offsets" -> commitOffsets(ask);
            case "committed" -> committed(ask, reply);
            case "delete_offsets" -> deleteOffsets(ask);
            default -> throw new NotOffered("no " + op);
        }
    }

    private Admin admin() {
        if (adminClient == null) {
            adminClient = Admin.create(Map.of("bootstrap.servers", bootstrap));
        }
        return adminClient;
    }

    private static <T> T done(Future<T> future) throws Exception {
        return future.get(PATIENCE, TimeUnit.MILLISECONDS);
    }

    private static String topic(JsonNode ask) {
        return ask.get("topic").asText();
    }

    private static String group(JsonNode ask) {
        return ask.get("group").asText();
    }

    private static TopicPartition partition(JsonNode ask) {
        return new TopicPartition(topic(ask), ask.get("partition").asInt());
    }

    private static byte[] decode(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String encode(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> out = new HashMap<>();
        object.fields().forEachRemaining(e -> out.put(e.getKey(), e.getValue().asText()));
        return out;
    }

    private void metadata(ObjectNode reply) throws Exception {
        ObjectNode topics = reply.putObject("topics");
        Set<String> names = done(admin().listTopics(new ListTopicsOptions().listInternal(true)).names());
        for (TopicDescription found : done(admin().describeTopics(names).allTopicNames()).values()) {
            topics.put(found.name(), found.partitions().size());
        }
        var cluster = admin().describeCluster();
        reply.put("nodes", done(cluster.nodes()).size()).put("cluster", done(cluster.clusterId()));
    }

    private void produce(JsonNode ask) throws Exception {
        Properties options = new Properties();
        options.put("bootstrap.servers", bootstrap);
        options.put("acks", ask.get("acks").asText());
        options.put("enable.idempotence", ask.get("idempotent").asText());
        options.put("compression.type", ask.get("codec").asText().isEmpty() ? "none" : ask.get("codec").asText());
        options.put("max.request.size", 64 << 20);
        options.put("batch.size", 64 << 10);
        options.put("linger.ms", 20);
        options.put("max.block.ms", PATIENCE / 3);
        options.put("request.timeout.ms", PATIENCE / 2);
        options.put("delivery.timeout.ms", PATIENCE);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode r : ask.get("records")) {
                Long timestamp = r.get("timestamp").asLong() == 0 ? null : r.get("timestamp").asLong();
                var record = new ProducerRecord<>(
                    topic(ask), ask.get("partition").asInt(), timestamp, decode(r.get("key")), decode(r.get("value")));
                for (JsonNode h : r.get("headers")) {
                    record.headers().add(h.get("key").asText(), decode(h.get("value")));
                }
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> answer : sent) {
                done(answer);
            }
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(more);
        options.put("bootstrap.servers", bootstrap);
        options.put("enable.auto.commit", false);
        options.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void read(JsonNode ask, ObjectNode reply) throws Exception {
        ArrayNode records = reply.putArray("records");
        TopicPartition at = partition(ask);
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(at));
            switch (ask.get("at").asText()) {
                case "earliest" -> consumer.seekToBeginning(List.of(at));
                case "latest" -> {
                    consumer.seekToEnd(List.of(at));
                    consumer.position(at); // the end of now, not of the first poll
                }
                case "offset" -> consumer.seek(at, ask.get("offset").asLong());
                default -> consumer.seek(at, consumer.offsetsForTimes(Map.of(at, ask.get("offset").asLong())).get(at).offset());
            }
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE);
            while (records.size() < ask.get("count").asInt() && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(r -> records.add(tell(r)));
            }
            while (records.size() > ask.get("count").asInt()) {
                records.remove(records.size() - 1);
            }
        }
    }

    private static ObjectNode tell(ConsumerRecord<byte[], byte[]> r) {
        ObjectNode out = JSON.createObjectNode();
        out.put("key", encode(r.key())).put("value", encode(r.value()));
        ArrayNode headers = out.putArray("headers");
        for (Header h : r.headers()) {
            headers.addObject().put("key", h.key()).put("value", encode(h.value()));
        }
        return out.put("timestamp", r.timestamp()).put("partition", r.partition()).put("offset", r.offset());
    }

    private void join(JsonNode ask) {
        Map<String, Object> options = new HashMap<>();
        options.put("group.id", group(ask));
        options.put("session.timeout.ms", PATIENCE);
        options.put("heartbeat.interval.ms", 500);
        if (!ask.get("instance").asText().isEmpty()) {
            options.put("group.instance.id", ask.get("instance").asText());
        }
        boolean cooperative = ask.get("strategy").asText().equals("cooperative");
        Class<?> assignor = cooperative ? CooperativeStickyAssignor.class : RangeAssignor.class;
        options.put("partition.assignment.strategy", List.of(assignor));
        revoked = 0;
        member = consumer(options);
        member.subscribe(List.of(topic(ask)), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                revoked += partitions.size();
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
        });
    }

    private void poll(ObjectNode reply) {
        ArrayNode records = reply.putArray("records");
        member.poll(Duration.ofMillis(200)).forEach(r -> records.add(tell(r)));
        ArrayNode assigned = reply.putArray("assigned");
        member.assignment().stream().mapToInt(TopicPartition::partition).sorted().forEach(assigned::add);
        reply.put("revoked", revoked);
    }

    private void leave() {
        member.close();
        member = null;
    }

    private void createTopic(JsonNode ask) throws Exception {
        var topic = new NewTopic(topic(ask), Optional.of(ask.get("partitions").asInt()), Optional.empty());
        done(admin().createTopics(List.of(topic.configs(strings(ask.get("configs"))))).all());
    }

    private void describeConfigs(JsonNode ask, ObjectNode reply) throws Exception {
        ObjectNode configs = reply.putObject("configs");
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(ask));
        for (ConfigEntry entry : done(admin().describeConfigs(List.of(resource)).all()).get(resource).entries()) {
            configs.put(entry.name(), entry.value());
        }
    }

    private void alterConfigs(JsonNode ask) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        strings(ask.get("configs")).forEach(
            (name, value) -> changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        for (JsonNode name : ask.get("unset")) {
            changes.add(new AlterConfigOp(new ConfigEntry(name.asText(), ""), AlterConfigOp.OpType.DELETE));
        }
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(ask));
        done(admin().incrementalAlterConfigs(Map.of(resource, changes)).all());
    }

    private long listOffset(JsonNode ask) throws Exception {
        TopicPartition at = partition(ask);
        if (ask.get("at").asText().equals("time")) {
            try (var consumer = consumer(Map.of())) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(at, ask.get("offset").asLong())).get(at);
                return found == null ? -1 : found.offset();
            }
        }
        OffsetSpec spec = ask.get("at").asText().equals("earliest") ? OffsetSpec.earliest() : OffsetSpec.latest();
        return done(admin().listOffsets(Map.of(at, spec)).all()).get(at).offset();
    }

    private void commitOffsets(JsonNode ask) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        ask.get("offsets").fields().forEachRemaining(e -> offsets.put(
            new TopicPartition(topic(ask), Integer.parseInt(e.getKey())), new OffsetAndMetadata(e.getValue().asLong())));
        done(admin().alterConsumerGroupOffsets(group(ask), offsets).all());
    }

    private void committed(JsonNode ask, ObjectNode reply) throws Exception {
        ObjectNode offsets = reply.putObject("offsets");
        var found = done(admin().listConsumerGroupOffsets(group(ask)).partitionsToOffsetAndMetadata());
        found.forEach((at, committed) -> {
            if (committed != null && at.topic().equals(topic(ask))) {
                offsets.put(Integer.toString(at.partition()), committed.offset());
            }
        });
    }

    private void deleteOffsets(JsonNode ask) throws Exception {
        Set<TopicPartition> partitions = new HashSet<>();
        ask.get("offsets").fieldNames().forEachRemaining(p -> partitions.add(new TopicPartition(topic(ask), Integer.parseInt(p))));
        done(admin().deleteConsumerGroupOffsets(group(ask), partitions).all());
    }
}
