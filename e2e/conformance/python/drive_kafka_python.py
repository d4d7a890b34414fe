"""Drives kafka-python for the conformance tests."""

import time

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors
from kafka.admin import AlterConfigOp, ConfigResource, KafkaAdminClient
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata

from wire import BOOTSTRAP, PATIENCE, NotOffered, Record, asks, failure, reply, tell


class Revoked(ConsumerRebalanceListener):
    """Counts the partitions that rebalances took away."""

    count = 0

    def on_partitions_revoked(self, revoked):
        self.count += len(revoked)

    def on_partitions_assigned(self, assigned):
        pass


class Driver:
    def __init__(self):
        self.admin_client = None
        self.member = None
        self.revoked = None

    def close(self):
        if self.member is not None:
            self.member.close(autocommit=False)
        if self.admin_client is not None:
            self.admin_client.close()

    @property
    def admin(self):
        if self.admin_client is None:
            self.admin_client = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
        return self.admin_client

    def hello(self, _):
        return {"version": kafka.__version__}

    def metadata(self, _):
        cluster = self.admin.describe_cluster()
        topics = {t["name"]: len(t["partitions"]) for t in self.admin.describe_topics()}
        return {"topics": topics, "nodes": len(cluster["brokers"]), "cluster": cluster["cluster_id"]}

    def produce(self, ask):
        producer = KafkaProducer(
            bootstrap_servers=BOOTSTRAP,
            acks={"0": 0, "1": 1, "all": "all"}[ask["acks"]],
            enable_idempotence=ask["idempotent"],
            compression_type=ask["codec"] if ask["codec"] not in ("", "none") else None,
            max_request_size=64 << 20,
            batch_size=64 << 10,
            linger_ms=20,
            max_block_ms=10_000,
            request_timeout_ms=PATIENCE * 500,
            delivery_timeout_ms=PATIENCE * 1000,
        )
        try:
            sent = [
                producer.send(
                    ask["topic"], key=r.key, value=r.value, headers=r.headers, partition=ask["partition"], timestamp_ms=r.timestamp
                )
                for r in map(Record, ask["records"])
            ]
            producer.flush(timeout=PATIENCE)
            for future in sent:
                future.get(timeout=PATIENCE)
        finally:
            producer.close()

    def read(self, ask):
        tp = TopicPartition(ask["topic"], ask["partition"])
        consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP, enable_auto_commit=False, auto_offset_reset="earliest", check_crcs=True)
        try:
            consumer.assign([tp])
            self.seek(consumer, tp, ask)
            records = []
            deadline = time.monotonic() + PATIENCE
            while len(records) < ask["count"] and time.monotonic() < deadline:
                for batch in consumer.poll(timeout_ms=200).values():
                    records.extend(batch)
            return {"records": tell(records[: ask["count"]])}
        finally:
            consumer.close()

    def seek(self, consumer, tp, ask):
        if ask["at"] == "earliest":
            consumer.seek_to_beginning(tp)
        elif ask["at"] == "latest":
            consumer.seek_to_end(tp)
            consumer.position(tp)  # the end of now, not of the first poll
        elif ask["at"] == "offset":
            consumer.seek(tp, ask["offset"])
        else:
            consumer.seek(tp, consumer.offsets_for_times({tp: ask["offset"]})[tp].offset)

    def join(self, ask):
        options = {}
        if ask["strategy"] == "cooperative":
            options["partition_assignment_strategy"] = [CooperativeStickyAssignor]
        self.member = KafkaConsumer(
            bootstrap_servers=BOOTSTRAP,
            group_id=ask["group"],
            group_instance_id=ask["instance"] or None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=PATIENCE * 1000,
            heartbeat_interval_ms=500,
            **options,
        )
        self.revoked = Revoked()
        self.member.subscribe([ask["topic"]], listener=self.revoked)

    def poll(self, _):
        records = [r for batch in self.member.poll(timeout_ms=200).values() for r in batch]
        return {
            "records": tell(records),
            "assigned": sorted(tp.partition for tp in self.member.assignment()),
            "revoked": self.revoked.count,
        }

    def commit(self, _):
        self.member.commit()

    def leave(self, _):
        self.member.close(autocommit=False)
        self.member = None

    def create_topic(self, ask):
        self.admin.create_topics({ask["topic"]: {"num_partitions": ask["partitions"], "configs": ask["configs"] or {}}})

    def delete_topic(self, ask):
        self.admin.delete_topics([ask["topic"]])

    def create_partitions(self, ask):
        self.admin.create_partitions({ask["topic"]: ask["partitions"]})

    def describe_configs(self, ask):
        found = self.admin.describe_configs([ConfigResource("topic", ask["topic"])], config_filter="all")
        return {"configs": {name: entry["value"] for name, entry in found["topic"][ask["topic"]].items()}}

    def alter_configs(self, ask):
        changes = dict(ask["configs"] or {})
        changes.update({name: (AlterConfigOp.DELETE, None) for name in ask["unset"] or []})
        answer = self.admin.alter_configs([ConfigResource("topic", ask["topic"], changes)], raise_on_unknown=False)
        if answer["topic"][ask["topic"]] != "OK":
            raise errors.KafkaError(answer["topic"][ask["topic"]])

    def replace_configs(self, _):
        raise NotOffered("alter_configs keeps what is set already")

    def delete_records(self, ask):
        self.admin.delete_records({TopicPartition(ask["topic"], ask["partition"]): ask["offset"]})

    def list_offset(self, ask):
        tp = TopicPartition(ask["topic"], ask["partition"])
        consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP)
        try:
            if ask["at"] == "earliest":
                return {"offset": consumer.beginning_offsets([tp])[tp]}
            if ask["at"] == "latest":
                return {"offset": consumer.end_offsets([tp])[tp]}
            found = consumer.offsets_for_times({tp: ask["offset"]})[tp]
            return {"offset": -1 if found is None else found.offset}
        finally:
            consumer.close()

    def list_groups(self, _):
        return {"groups": [g["group_id"] for g in self.admin.list_groups()]}

    def describe_group(self, ask):
        found = self.admin.describe_groups([ask["group"]])[ask["group"]]
        if found["error"]:
            raise errors.KafkaError(found["error"])
        return {"state": found["group_state"], "members": len(found["members"])}

    def delete_group(self, ask):
        answer = self.admin.delete_groups([ask["group"]])[ask["group"]]
        if answer != "OK":
            raise getattr(errors, answer)(f"delete {ask['group']}")

    def commit_offsets(self, ask):
        offsets = {TopicPartition(ask["topic"], int(p)): OffsetAndMetadata(o, "", -1) for p, o in ask["offsets"].items()}
        raise_first(self.admin.alter_group_offsets(ask["group"], offsets))

    def committed(self, ask):
        found = self.admin.list_group_offsets(ask["group"])[ask["group"]]
        return {"offsets": {str(tp.partition): o.offset for tp, o in found.items() if tp.topic == ask["topic"] and o.offset >= 0}}

    def delete_offsets(self, ask):
        raise_first(self.admin.delete_group_offsets(ask["group"], [TopicPartition(ask["topic"], int(p)) for p in ask["offsets"]]))


def raise_first(outcomes):
    """Raises the first error of partitions."""
    for tp, error in outcomes.items():
        if error is not errors.NoError:
            raise error(f"{tp.topic}/{tp.partition}")


OPERATIONS = {
    "hello", "metadata", "produce", "read", "join", "poll", "commit", "leave", "create_topic", "delete_topic", "create_partitions",
    "describe_configs", "alter_configs", "replace_configs", "delete_records", "list_offset", "list_groups", "describe_group",
    "delete_group", "commit_offsets", "committed", "delete_offsets",
}


def main():
    driver = Driver()
    for ask in asks():
        try:
            if ask["op"] not in OPERATIONS:
                raise NotOffered(f"no {ask['op']}")
            fields = getattr(driver, ask["op"])(ask) or {}
        except Exception as error:  # whatever the client raises is its reply
            fields = failure(error)
        reply(fields)
    driver.close()


main()
