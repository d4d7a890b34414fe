"""Drives aiokafka for the conformance tests."""

import asyncio
import time

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from wire import BOOTSTRAP, PATIENCE, NotOffered, Record, asks, failure, reply, tell


class Revoked(ConsumerRebalanceListener):
    """Counts the partitions that rebalances took away."""

    count = 0

    async def on_partitions_revoked(self, revoked):
        self.count += len(revoked)

    async def on_partitions_assigned(self, assigned):
        pass


def raise_for(code, what):
    if code:
        raise for_code(code)(what)


class Driver:
    def __init__(self):
        self.admin_client = None
        self.member = None
        self.revoked = None

    async def close(self):
        if self.member is not None:
            await self.member.stop()
        if self.admin_client is not None:
            await self.admin_client.close()

    async def admin(self):
        if self.admin_client is None:
            client = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
            await client.start()
            self.admin_client = client
        return self.admin_client

    async def hello(self, _):
        return {"version": aiokafka.__version__}

    async def metadata(self, _):
        admin = await self.admin()
        cluster = await admin.describe_cluster()
        topics = {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics()}
        return {"topics": topics, "nodes": len(cluster["brokers"]), "cluster": cluster["cluster_id"]}

    async def produce(self, ask):
        async with AIOKafkaProducer(
            bootstrap_servers=BOOTSTRAP,
            acks={"0": 0, "1": 1, "all": "all"}[ask["acks"]],
            enable_idempotence=ask["idempotent"],
            compression_type=ask["codec"] if ask["codec"] not in ("", "none") else None,
            max_request_size=64 << 20,
            max_batch_size=64 << 10,
            linger_ms=20,
            request_timeout_ms=PATIENCE * 500,
        ) as producer:
            sent = [
                await producer.send(
                    ask["topic"], key=r.key, value=r.value, headers=r.headers, partition=ask["partition"], timestamp_ms=r.timestamp
                )
                for r in map(Record, ask["records"])
            ]
            await producer.flush()
            await asyncio.gather(*sent)

    async def read(self, ask):
        tp = TopicPartition(ask["topic"], ask["partition"])
        async with AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            if ask["at"] == "earliest":
                await consumer.seek_to_beginning(tp)
            elif ask["at"] == "latest":
                await consumer.seek_to_end(tp)
            elif ask["at"] == "offset":
                consumer.seek(tp, ask["offset"])
            else:
                consumer.seek(tp, (await consumer.offsets_for_times({tp: ask["offset"]}))[tp].offset)
            records = []
            deadline = time.monotonic() + PATIENCE
            while len(records) < ask["count"] and time.monotonic() < deadline:
                records.extend((await consumer.getmany(tp, timeout_ms=200)).get(tp, []))
            return {"records": tell(records[: ask["count"]])}

    async def join(self, ask):
        if ask["strategy"] == "cooperative":
            raise NotOffered("no cooperative assignor")
        self.member = AIOKafkaConsumer(
            bootstrap_servers=BOOTSTRAP,
            group_id=ask["group"],
            group_instance_id=ask["instance"] or None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=PATIENCE * 1000,
            heartbeat_interval_ms=500,
        )
        self.revoked = Revoked()
        self.member.subscribe([ask["topic"]], listener=self.revoked)
        await self.member.start()

    async def poll(self, _):
        records = [r for batch in (await self.member.getmany(timeout_ms=200)).values() for r in batch]
        assigned = sorted(tp.partition for tp in self.member.assignment())
        return {"records": tell(records), "assigned": assigned, "revoked": self.revoked.count}

    async def commit(self, _):
        await self.member.commit()

    async def leave(self, _):
        await self.member.stop()
        self.member = None

    async def create_topic(self, ask):
        topic = NewTopic(ask["topic"], ask["partitions"], 1, topic_configs=ask["configs"] or {})
        answer = await (await self.admin()).create_topics([topic])
        for _, code, *_ in answer.topic_errors:
            raise_for(code, ask["topic"])

    async def delete_topic(self, ask):
        answer = await (await self.admin()).delete_topics([ask["topic"]])
        for _, code in answer.topic_error_codes:
            raise_for(code, ask["topic"])

    async def create_partitions(self, ask):
        await (await self.admin()).create_partitions({ask["topic"]: NewPartitions(ask["partitions"])})

    async def describe_configs(self, ask):
        answers = await (await self.admin()).describe_configs([ConfigResource(ConfigResourceType.TOPIC, ask["topic"])])
        code, message, _, _, entries = answers[0].resources[0]
        raise_for(code, message)
        return {"configs": {name: value for name, value, *_ in entries}}

    async def replace_configs(self, ask):
        resource = ConfigResource(ConfigResourceType.TOPIC, ask["topic"], ask["configs"] or {})
        answers = await (await self.admin()).alter_configs([resource])
        code, message, *_ = answers[0].resources[0]
        raise_for(code, message)

    async def delete_records(self, ask):
        tp = TopicPartition(ask["topic"], ask["partition"])
        await (await self.admin()).delete_records({tp: RecordsToDelete(ask["offset"])})

    async def list_offset(self, ask):
        tp = TopicPartition(ask["topic"], ask["partition"])
        async with AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP) as consumer:
            if ask["at"] == "earliest":
                return {"offset": (await consumer.beginning_offsets([tp]))[tp]}
            if ask["at"] == "latest":
                return {"offset": (await consumer.end_offsets([tp]))[tp]}
            found = (await consumer.offsets_for_times({tp: ask["offset"]}))[tp]
            return {"offset": -1 if found is None else found.offset}

    async def list_groups(self, _):
        return {"groups": [group for group, _ in await (await self.admin()).list_consumer_groups()]}

    async def describe_group(self, ask):
        answers = await (await self.admin()).describe_consumer_groups([ask["group"]])
        code, _, state, _, _, members, *_ = answers[0].groups[0]
        raise_for(code, ask["group"])
        return {"state": state, "members": len(members)}

    async def committed(self, ask):
        found = await (await self.admin()).list_consumer_group_offsets(ask["group"])
        return {"offsets": {str(tp.partition): o.offset for tp, o in found.items() if tp.topic == ask["topic"] and o.offset >= 0}}


OPERATIONS = {
    "hello", "metadata", "produce", "read", "join", "poll", "commit", "leave", "create_topic", "delete_topic", "create_partitions",
    "describe_configs", "replace_configs", "delete_records", "list_offset", "list_groups", "describe_group", "committed",
}


async def main():
    driver = Driver()
    lines, loop = asks(), asyncio.get_running_loop()
    # Stdin is read beside the loop, in which a member of a group sends its heartbeats.
    while (ask := await loop.run_in_executor(None, next, lines, None)) is not None:
        try:
            if ask["op"] not in OPERATIONS:
                raise NotOffered(f"no {ask['op']}")
            fields = await getattr(driver, ask["op"])(ask) or {}
        except Exception as error:  # whatever the client raises is its reply
            fields = failure(error)
        reply(fields)
    await driver.close()


asyncio.run(main())
