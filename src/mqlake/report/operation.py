"""The cards about the state of stores: consumers, damage, logs and what still needs them."""

from __future__ import annotations

from html import escape

from mqlake.report import scales
from mqlake.report.blocks import badge, bar_list, counted, figures, section, store_table
from mqlake.report.data import Report

TOP = 15
"""Rows in the list of bars. The table has all groups."""


def lag(report: Report) -> str:
    if not report.lag:
        text = "No consumer progress: config/consumerOffset.json names no group."
        return section("Consumers", "", f'<p class="note">{text}</p>')
    found = sorted(report.lag, key=lambda row: (-row.messages, row.group, row.topic))
    rows = [
        (
            f"{row.group} · {row.topic}",
            float(row.messages),
            scales.short(row.messages),
            _waiting(report, row.waiting_since_ms),
        )
        for row in found[:TOP]
    ]
    lines = [
        (
            row.group,
            row.topic,
            row.store,
            str(row.queue_count),
            scales.count(row.messages),
            _waiting(report, row.waiting_since_ms),
        )
        for row in found
    ]
    heads = ("group", "topic", "store", "queues>", "lag>", "oldest waits>")
    note = "Messages that each group has not yet consumed, and how long the oldest of them has waited."
    full = f"<details><summary>All groups</summary>{store_table(report, heads, lines, len(lines))}</details>"
    return section("Consumers", note, bar_list(rows, tone="second"), full)


def _waiting(report: Report, since_ms: int | None) -> str:
    return "" if since_ms is None else scales.duration(max(0, report.made_ms - since_ms))


def damage(report: Report) -> str:
    if not report.damage:
        return section("Damage", "", badge("No damage found", "good"), _counted_note(report))
    rows = [
        (
            row.store,
            "" if row.offset is None else scales.count(row.offset),
            "" if row.size is None else scales.size(row.size),
            row.what,
        )
        for row in report.damage
    ]
    note = "Readers skip these bytes. mqlake check shows details, mqlake repair fixes them."
    shown = store_table(report, ("store", "offset>", "size>", "what"), rows)
    return section("Damage", note, badge(counted(len(rows), "damaged place"), "bad"), shown)


def _counted_note(report: Report) -> str:
    total = sum(store.counted_end - store.counted_start for store in report.stores)
    text = f"Every record in {scales.size(total)} of log was checked, including the CRC of its body."
    return f'<p class="note">{escape(text)}</p>'


def retention(report: Report) -> str:
    heads = ("store", "log from>", "to>", "size>")
    rows = [
        (
            store.path,
            scales.count(store.log_start),
            scales.count(store.log_end),
            scales.size(store.log_end - store.log_start),
        )
        for store in report.stores
    ]
    if len(rows) == 1:
        parts = [figures((head.rstrip(">"), cell) for head, cell in zip(heads[1:], rows[0][1:], strict=True))]
    else:
        parts = [store_table(report, heads, rows, 50)] if rows else []
    if report.gates:
        held = [
            (gate.store, gate.name, scales.count(gate.offset), scales.size(max(0, gate.log_end - gate.offset)))
            for gate in report.gates
        ]
        parts += [
            "<h3>Gates: parts of the log that are still needed</h3>",
            store_table(report, ("store", "gate", "from offset>", "of log>"), held, 50),
        ]
    else:
        parts.append('<p class="note">No gate holds the log: retention alone decides what is deleted.</p>')
    note = "Offsets are bytes in each log. Retention deleted everything before the first offset."
    return section("Logs and retention", note, *parts)
