//! The kinds of parts, the constants that each needs, and their translation to the simulator's structs.

use sim::{Buffers, Cached, Calls, Disk, Flash, Group, Level, Model, Remote, Seek, Tags, Tiered, Unit};

use super::StorageModel;
use super::unit::{self, Quantity};
use Quantity::{Bytes, Count, PerSecond, Rate, Time};

/// A block of VMFS, the unit of space allocation for files, bytes.
pub(super) const EXTENT_BYTES: u64 = 1 << 20;

/// A constant of a kind, and the range in which the device works, in the unit that models calculate in.
pub(super) struct Key {
    pub name: &'static str,
    pub quantity: Quantity,
    least: f64,
    most: f64,
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

const SECOND: f64 = 1e9;
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

fn absent(name: &str) -> Option<f64> {
    KINDS.iter().flat_map(|kind| kind.keys).find(|key| key.name == name)?.absent
}

/// Returns the nanoseconds between two events; 0 where there is no limit.
fn gap_ns(per_s: f64) -> u64 {
    if per_s > 0.0 { (SECOND / per_s).round() as u64 } else { 0 }
}

impl StorageModel {
    /// Checks that the device would work. An error is the name of the wrong constant, and the reason.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        self.check_part(&self.part)?;
        self.check_keys(CALLS, "calls.")
    }

    fn check_part(&self, part: &Part) -> Result<(), (String, String)> {
        self.check_keys(part.kind, &part.prefix)?;
        part.parts.iter().try_for_each(|inner| self.check_part(inner))
    }

    fn check_keys(&self, name: &str, prefix: &str) -> Result<(), (String, String)> {
        let keys = kind(name).map_or(&[][..], |kind| kind.keys);
        for key in keys {
            let (name, value) = (format!("{prefix}{}", key.name), self.of(prefix, key.name));
            let whole = key.quantity != Count || value.fract() == 0.0;
            if !(key.least..=key.most).contains(&value) || !whole {
                let piece = match key.quantity {
                    Time => " ns",
                    Bytes => " bytes",
                    Rate => " bytes/s",
                    PerSecond => "/s",
                    Count => "",
                };
                let cause =
                    format!("{name} is {value}{piece}, expected {}{piece} to {}{piece}", key.least, key.most);
                return Err((name, if whole { cause } else { format!("{cause}, whole") }));
            }
        }
        Ok(())
    }

    /// Returns a constant's value. The parser has ensured that every required constant of every kind is present.
    fn of(&self, prefix: &str, key: &str) -> f64 {
        let found =
            self.constants.iter().find(|c| c.name.strip_prefix(prefix).is_some_and(|rest| rest == key));
        let value = found.map(unit::base).or_else(|| absent(key));
        value.unwrap_or_else(|| panic!("{prefix}{key} is missing from {}", self.name))
    }

    pub(super) fn unit(&self) -> Unit {
        Unit { model: self.model(&self.part), calls: self.calls() }
    }

    fn calls(&self) -> Calls {
        let number = |key| self.of("calls.", key) as u32;
        Calls {
            call_ns: self.of("calls.", "call") as u64,
            open: number("open"),
            create: number("create"),
            lock: number("lock"),
            change: number("change"),
            ask: number("ask"),
        }
    }

    fn model(&self, part: &Part) -> Model {
        let number = |key| self.of(&part.prefix, key).round() as u64;
        let per_kib_ns = |key| gap_ns(self.of(&part.prefix, key) / 1024.0);
        let per_request_ns = |key| gap_ns(self.of(&part.prefix, key));
        let inner = |n: usize| Box::new(self.model(&part.parts[n]));
        let group = |level, strip_bytes| {
            Model::Group(Group { level, members: number("members") as u32, strip_bytes, member: inner(0) })
        };
        match part.kind {
            "disk" => Model::Disk(self.disk(part)),
            "flash" => Model::Flash(Flash {
                read_ns: number("read"),
                write_ns: number("write"),
                flush_ns: number("flush"),
                read_per_kib_ns: per_kib_ns("read_rate"),
                write_per_kib_ns: per_kib_ns("write_rate"),
                lanes: number("lanes") as u32,
                write_lanes: number("write_lanes") as u32,
                gap_ns: per_request_ns("iops_max"),
                gap_per_kib_ns: per_kib_ns("rate_max"),
            }),
            "mirror" => group(Level::Mirror, 0),
            "stripe" => group(Level::Stripe, number("strip")),
            "parity" => group(Level::Parity, number("strip")),
            "cached" => Model::Cached(Cached {
                read_bytes: number("read_cache"),
                page_bytes: number("page"),
                dirty_bytes: number("dirty_max"),
                hit_ns: number("hit"),
                write_ns: number("write"),
                per_kib_ns: per_kib_ns("rate"),
                gap_ns: per_request_ns("iops_max"),
                destages: number("destages") as u32,
                destage_bytes: number("destage_max"),
                back: inner(0),
            }),
            "tiered" => {
                Model::Tiered(Tiered { fast_bytes: number("fast_size"), fast: inner(0), slow: inner(1) })
            }
            "remote" => Model::Remote(Remote {
                round_trip_ns: number("round_trip"),
                server_ns: number("server"),
                threads: number("threads") as u32,
                per_kib_ns: per_kib_ns("wire"),
                back: inner(0),
            }),
            other => unreachable!("the parser knows no kind {other}"),
        }
    }

    fn disk(&self, part: &Part) -> Disk {
        let number = |key| self.of(&part.prefix, key).round() as u64;
        Disk {
            capacity_bytes: number("capacity"),
            revolution_ns: number("revolution"),
            track_bytes: number("track"),
            tracks_per_cylinder: number("heads"),
            seek: Seek { base_ns: number("seek_base"), stroke_ns: number("seek_stroke") },
            switch_ns: number("switch"),
            write_settle_ns: number("write_settle"),
            overhead_ns: number("overhead"),
            buffers: Buffers {
                count: number("buffers") as u32,
                bytes: number("buffer"),
                per_kib_ns: gap_ns(self.of(&part.prefix, "cable") / 1024.0),
            },
            tags: Tags {
                depth: number("tags") as u32,
                compared: number("compared") as u32,
                patience_ns: number("patience"),
            },
        }
    }
}
