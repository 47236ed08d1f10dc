"""The tables of ckptman's state. ``state.ckptstate`` describes the columns."""

from __future__ import annotations

from slurm_elastic.state.store.view import Schema

FILE = "checkpoints.db"
SCHEMA = Schema(
    name="file of checkpoints",
    maker="slurm-elastic-ckptman",
    version=1,
    # Columns that win over the file: the service wrote them while it had no file, so they are
    # newer.
    newer_wins={
        "migrations": ("step", "over", "changed", "body"),
        "notices": ("body", "closed"),
        "images": ("taken", "body"),
        "unsavable": ("body",),
        "suspensions": ("body",),
        "avoided": ("body",),
    },
    statements=(
        """create table notices (
            key text primary key,
            body text not null,
            closed real
        ) without rowid""",
        "create index notices_open on notices (key) where closed is null",
        """create table migrations (
            job integer not null,
            attempt integer not null,
            step text not null,
            over integer not null,
            changed real not null,
            body text not null,
            primary key (job, attempt)
        ) without rowid""",
        "create index migrations_open on migrations (changed) where over = 0",
        """create table images (
            job integer not null,
            attempt integer not null,
            number integer not null,
            taken real not null,
            body text not null,
            primary key (job, attempt, number)
        ) without rowid""",
        """create table interruptions (
            instance text primary key,
            offer text not null,
            at real not null
        ) without rowid""",
        "create table counters (name text primary key, value real not null) without rowid",
        "create table releases (node text primary key) without rowid",
        "create table unsavable (job integer primary key, body text not null) without rowid",
        "create table suspensions (job integer primary key, body text not null) without rowid",
        "create table avoided (job integer primary key, body text not null) without rowid",
    ),
)
