//! Checks a model's constants, and translates them to the simulator's structs.

use sim::{Buffers, Cached, Calls, Disk, Flash, Group, Level, Model, Remote, Seek, Tags, Tiered, Unit};

use super::StorageModel;
use super::kinds::{CALLS, Part, SECOND, absent, kind};
use super::unit::{self, Quantity};
use Quantity::{Bytes, Count, PerSecond, Rate, Time};

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
            other => unreachable!("the parser accepts no kind {other}"),
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
