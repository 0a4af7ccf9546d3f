"""The database: SQLAlchemy Core tables, the same on SQLite and PostgreSQL. Times are seconds since 1970."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

SCHEMA = 7
"""Raise it with every column, table or index that comes: a database of an earlier version is given them."""
schema = MetaData()

about = Table("about", schema, Column("key", String(50), primary_key=True), Column("value", String(200)))

tokens = Table(
    "tokens",
    schema,
    Column("id", String(20), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("label", String(100), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("max_uses", Integer, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("at_once", Integer),  # how many of its devices may have a task at the same time; null: all
)

devices = Table(
    "devices",
    schema,
    Column("id", String(20), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("name", String(100), nullable=False),
    Column("token", ForeignKey("tokens.id"), nullable=False),
    Column("created", Float, nullable=False),
    Column("last_seen", Float),
    Column("revoked", Boolean, nullable=False),
    Column("profile", JSON),  # its last check-in
    Column("key", String(43)),  # public, of those that sign; their hash is empty
    Column("signed", BigInteger),  # the time of the newest request that it signed, in milliseconds
    Column("note", String(300)),  # what people wrote about it
    Column("version", String(50)),  # of its client; null until it has said it
    Index("devices_by_key", "key"),
    Index("revoked_devices", "id", sqlite_where=text("revoked IS 1"), postgresql_where=text("revoked IS true")),
)

people = Table(  # who may use the server beside the one with the administrator's token
    "people",
    schema,
    Column("name", String(50), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("role", String(20), nullable=False),  # viewer, operator, administrator
    Column("created", Float, nullable=False),
    Column("revoked", Boolean, nullable=False),
)

bundles = Table(
    "bundles",
    schema,
    Column("sha256", String(64), primary_key=True),
    Column("created", Float, nullable=False),
    Column("name", String(100)),  # what people call it
)

jobs = Table(
    "jobs",
    schema,
    Column("id", String(20), primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("bundle", ForeignKey("bundles.sha256"), nullable=False),
    Column("settings", JSON, nullable=False),
    Column("state", String(10), nullable=False),  # running, paused, set-aside, ended
    Column("reason", Text, nullable=False),  # why it ended, or was set aside
    Column("version", Integer, nullable=False),
    Column("round", Integer, nullable=False),  # the newest round's number
    Column("done", Integer, nullable=False),  # rounds that moved the weights
    Column("created", Float, nullable=False),
    Column("ended", Float),
)

rounds = Table(
    "rounds",
    schema,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", String(10), nullable=False),  # open, closing, done, failed
    Column("version", Integer, nullable=False),  # the weights it started from
    Column("opened", Float, nullable=False),
    Column("started", Float),  # when the first device joined
    Column("deadline", Float),  # of the round, or of its open iteration
    Column("closed", Float),
    Column("iteration", Integer, nullable=False),
    Column("owner", String(100)),  # the process that closes it
    Column("lease", Float),  # until when it may
    Column("fence", Integer, nullable=False, server_default="0"),  # how often it was claimed: a closer's own number
    Column("in_time", Boolean),  # complete, not given up for its time; null while it takes reports
    Column("result", JSON),
    Index("open_rounds", "state"),
)

LIVE = "state IN ('open', 'accepted')"
SOLE = f"sole AND {LIVE}"

tasks = Table(
    "tasks",
    schema,
    Column("id", String(32), primary_key=True),
    Column("job", ForeignKey("jobs.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("device", ForeignKey("devices.id"), nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("units", JSON, nullable=False),
    Column("cut", Integer, nullable=False),
    Column("batch", Integer, nullable=False),
    Column("runtime", String(50), nullable=False),
    Column("state", String(10), nullable=False),  # open, accepted, refused, failed, expired, spare
    Column("reason", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("ended", Float),
    Column("update", String(64)),  # the accepted update's blob
    Column("report", JSON),
    Column("norms", JSON),
    Column("declared", BigInteger),  # examples that the device had when it took the task; null: it did not tell
    Column("way", JSON),  # settings of its training that are not the job's; null: all are
    Column("sole", Boolean),  # its device has no other place of the round; null in rounds of earlier versions
    Column("base", Integer),  # schedule buffered: the version its device began with; null: its round's
    Column("until", Float),  # schedule buffered: when its own time is up; null: its round's deadline
    Index("tasks_of_round", "job", "round"),
    Index("tasks_of_device", "device", "created"),
    # A slot is one live device's, and a device has one task at a time, however many workers hand them out.
    Index("live_slot", "job", "round", "slot", unique=True, sqlite_where=text(LIVE), postgresql_where=text(LIVE)),
    Index(
        "open_task_of_device",
        "device",
        unique=True,
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
    # A round's clients are distinct devices.
    Index("live_device", "job", "round", "device", unique=True, sqlite_where=text(SOLE), postgresql_where=text(SOLE)),
)

scalars = Table(  # mode iteration: reports of the open iteration
    "scalars",
    schema,
    Column("task", ForeignKey("tasks.id"), primary_key=True),
    Column("iteration", Integer, primary_key=True),
    Column("job", String(20), nullable=False),
    Column("round", Integer, nullable=False),
    Column("report", LargeBinary, nullable=False),
    Index("scalars_of_iteration", "job", "round", "iteration"),
)

steps = Table(  # mode iteration: the published records
    "steps",
    schema,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("record", LargeBinary, nullable=False),
)

versions = Table(  # weights at the end of a round
    "versions",
    schema,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("weights", String(64)),  # blobs; forgotten ones are null
    Column("optimizer", String(64)),
    Column("changed", JSON, nullable=False),
    Column("created", Float, nullable=False),
    Column("mirrored", String(64)),  # the weights' blob, where mirrors show it
)

metrics = Table(
    "metrics",
    schema,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("name", String(50), primary_key=True),
    Column("value", Float, nullable=False),
)

refusals = Table(
    "refusals",
    schema,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("device", String(20), nullable=False),
    Column("job", String(20)),
    Column("round", Integer),
    Column("task", String(32)),
    Column("code", String(20), nullable=False),
    Column("detail", Text, nullable=False),
    Index("refusals_of_round", "job", "round"),
    Index("refusals_of_device", "device"),
)

traffic = Table(  # bytes of what devices sent and fetched
    "traffic",
    schema,
    Column("job", String(20), primary_key=True),  # "" where it belongs to none
    Column("round", Integer, primary_key=True),  # 0 where it belongs to none
    Column("device", String(20), primary_key=True),
    Column("up", BigInteger, nullable=False),
    Column("down", BigInteger, nullable=False),
)

participations = Table(  # of devices in the published rounds of private jobs
    "participations",
    schema,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("device", ForeignKey("devices.id"), primary_key=True),
    Column("times", Integer, nullable=False),
)

audit = Table(
    "audit",
    schema,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("actor", String(100), nullable=False),
    Column("action", String(50), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("detail", Text, nullable=False),
    Index("audit_by_action", "action", "actor", "time"),
    Index("audit_by_subject", "subject"),
)

refused_before = Table(  # how many refusals were forgotten
    "refused_before",
    schema,
    Column("job", String(20), primary_key=True),  # "" where it belongs to none
    Column("code", String(20), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

sums = Table(  # secure aggregation: rounds whose devices add up what they learnt
    "sums",
    schema,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("stage", String(10), nullable=False),  # shares, update, vow, opening, over
    Column("until", Float, nullable=False),  # when the stage goes on without those who are late
    Column("cap", BigInteger, nullable=False),  # examples that count at most
    Column("roster", JSON, nullable=False),  # places, as are the next two
    Column("sharers", JSON, nullable=False),
    Column("survivors", JSON, nullable=False),
    Column("reason", Text, nullable=False),  # why it came to nothing
)

summands = Table(  # what a device said for a sum; forgotten with the round
    "summands",
    schema,
    Column("task", ForeignKey("tasks.id"), primary_key=True),
    Column("job", String(20), nullable=False),
    Column("round", Integer, nullable=False),
    Column("card", LargeBinary, nullable=False),
    Column("shares", LargeBinary),
    Column("update", String(64)),  # the masked update's blob
    Column("vow", LargeBinary),
    Column("opening", LargeBinary),
    Index("summands_of_round", "job", "round"),
)
