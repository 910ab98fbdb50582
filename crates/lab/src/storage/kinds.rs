//! The kinds of parts: the constants that each of them has, and the ranges in which the device works.

use super::unit::Quantity;
use Quantity::{Bytes, Count, PerSecond, Rate, Time};

/// A constant of a kind, and the range in which the device works, in the unit that models calculate in.
pub(super) struct Key {
    pub name: &'static str,
    pub quantity: Quantity,
    pub least: f64,
    pub most: f64,
    /// Value where the file omits the constant; None: the constant is required.
    pub absent: Option<f64>,
}

pub(super) struct Kind {
    pub name: &'static str,
    pub keys: &'static [Key],
    /// Tables of its own, each of them a part.
    pub parts: &'static [&'static str],
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub kind: &'static str,
    /// Prefix of its constants' names: empty, or ending in a dot.
    pub prefix: String,
    pub parts: Vec<Part>,
}

/// One second in nanoseconds.
pub(super) const SECOND: f64 = 1e9;
const EXBI: f64 = 1_152_921_504_606_846_976.0;

const fn key(name: &'static str, quantity: Quantity, least: f64, most: f64) -> Key {
    Key { name, quantity, least, most, absent: None }
}

const fn time(name: &'static str) -> Key {
    key(name, Time, 0.0, 1000.0 * SECOND)
}

/// Describes a rate in bytes a second; 0 is no limit.
const fn rate(name: &'static str) -> Key {
    key(name, Rate, 0.0, 1e15)
}

const fn count(name: &'static str, least: f64, most: f64) -> Key {
    key(name, Count, least, most)
}

pub(super) const CALLS: &str = "calls";

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "disk",
        keys: &[
            key("capacity", Bytes, 1e8, EXBI),
            key("revolution", Time, 1e4, SECOND),
            key("track", Bytes, 512.0, 1e8),
            count("heads", 1.0, 64.0),
            time("seek_base"),
            time("seek_stroke"),
            time("switch"),
            time("write_settle"),
            time("overhead"),
            count("buffers", 0.0, 1024.0),
            key("buffer", Bytes, 0.0, 1e9),
            rate("cable"),
            count("tags", 1.0, 1024.0),
            count("compared", 1.0, 1024.0),
            time("patience"),
        ],
        parts: &[],
    },
    Kind {
        name: "flash",
        keys: &[
            time("read"),
            time("write"),
            time("flush"),
            rate("read_rate"),
            rate("write_rate"),
            count("lanes", 1.0, 1024.0),
            // 0: writes share the lanes of the reads.
            Key { absent: Some(0.0), ..count("write_lanes", 0.0, 1024.0) },
            key("iops_max", PerSecond, 0.0, SECOND),
            rate("rate_max"),
        ],
        parts: &[],
    },
    Kind { name: "mirror", keys: &[count("members", 1.0, 64.0)], parts: &["member"] },
    Kind {
        name: "stripe",
        keys: &[count("members", 1.0, 256.0), key("strip", Bytes, 512.0, 1e9)],
        parts: &["member"],
    },
    Kind {
        name: "parity",
        keys: &[count("members", 3.0, 64.0), key("strip", Bytes, 512.0, 1e9)],
        parts: &["member"],
    },
    Kind {
        name: "cached",
        keys: &[
            key("read_cache", Bytes, 0.0, EXBI),
            key("page", Bytes, 512.0, 1e8),
            key("dirty_max", Bytes, 0.0, EXBI),
            time("hit"),
            time("write"),
            rate("rate"),
            key("iops_max", PerSecond, 0.0, SECOND),
            count("destages", 1.0, 1024.0),
            key("destage_max", Bytes, 512.0, 1e9),
        ],
        parts: &["back"],
    },
    Kind { name: "tiered", keys: &[key("fast_size", Bytes, 0.0, EXBI)], parts: &["fast", "slow"] },
    Kind {
        name: "remote",
        keys: &[time("round_trip"), time("server"), count("threads", 1.0, 1024.0), rate("wire")],
        parts: &["back"],
    },
    Kind {
        name: CALLS,
        keys: &[
            time("call"),
            count("open", 0.0, 1000.0),
            count("create", 0.0, 1000.0),
            count("lock", 0.0, 1000.0),
            count("close", 0.0, 1000.0),
            count("change", 0.0, 1000.0),
            count("ask", 0.0, 1000.0),
        ],
        parts: &[],
    },
];

pub(super) fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

pub(super) fn absent(name: &str) -> Option<f64> {
    KINDS.iter().flat_map(|kind| kind.keys).find(|key| key.name == name)?.absent
}
