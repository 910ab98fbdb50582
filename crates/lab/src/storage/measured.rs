//! A model of existing storage, made from a few measured figures.
//!
//! The model is one flash device: a latency, a number of concurrent requests, and caps. A few seconds can measure that
//! on any device. The movement of heads, the content of caches and the time until they are full are not in the model.

use std::fmt::Write;

use blk::{Error, Result};

use super::StorageModel;

/// A load, and the rate and latency that the storage delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub load: Load,
    pub iops: f64,
    pub latency_us: f64,
}

/// Random requests on a file, with a constant number under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub block_bytes: u32,
    pub read_percent: u8,
    pub outstanding: u32,
}

const SMALL: u32 = 4096;
const LARGE: u32 = 1 << 20;
const DEEP: u32 = 32;
/// Most requests a second of a model: one in a nanosecond.
const IOPS_MAX: f64 = 1e9;

const fn load(block_bytes: u32, read_percent: u8, outstanding: u32) -> Load {
    Load { block_bytes, read_percent, outstanding }
}

const READ_ALONE: Load = load(SMALL, 100, 1);
const READ_DEEP: Load = load(SMALL, 100, DEEP);
const WRITE_ALONE: Load = load(SMALL, 0, 1);
const WRITE_DEEP: Load = load(SMALL, 0, DEEP);
const MIXED_DEEP: Load = load(SMALL, 70, DEEP);
const LARGE_READ_ALONE: Load = load(LARGE, 100, 1);
const LARGE_READ_DEEP: Load = load(LARGE, 100, 8);
const LARGE_WRITE_ALONE: Load = load(LARGE, 0, 1);
const LARGE_WRITE_DEEP: Load = load(LARGE, 0, 8);

/// The loads that the model is fitted to.
const FITTED: [Load; 8] = [
    READ_ALONE,
    READ_DEEP,
    WRITE_ALONE,
    WRITE_DEEP,
    LARGE_READ_ALONE,
    LARGE_READ_DEEP,
    LARGE_WRITE_ALONE,
    LARGE_WRITE_DEEP,
];

/// Loads that check the model and do not enter it.
const HELD_OUT: [Load; 3] = [load(SMALL, 100, 8), load(SMALL, 0, 8), MIXED_DEEP];

/// Returns the load that a prediction for this share of reads is checked with: as deep as a guest's driver goes.
pub const fn asked(read_percent: u8) -> Load {
    load(SMALL, read_percent, DEEP)
}

/// Returns the loads to measure before a prediction for this share of reads: those that the model is fitted to, and
/// those that check it, the share itself at two depths among them.
pub fn loads(read_percent: u8) -> Vec<Load> {
    let mut all: Vec<Load> = FITTED.into_iter().chain(HELD_OUT).collect();
    for own in [load(SMALL, read_percent, 8), asked(read_percent)] {
        if !all.contains(&own) {
            all.push(own);
        }
    }
    all
}

impl Load {
    /// Returns whether the model is fitted to this load. Otherwise the load checks it.
    pub fn is_fitted(self) -> bool {
        FITTED.contains(&self)
    }

    /// Returns the load in words: `4 KiB, 70 % reads, 32 under way`.
    pub fn text(self) -> String {
        let mix = match self.read_percent {
            100 => "random reads".into(),
            0 => "random writes".into(),
            percent => format!("random, {percent} % reads"),
        };
        let size = match self.block_bytes {
            LARGE => "1 MiB".into(),
            bytes => format!("{} KiB", bytes / 1024),
        };
        format!("{size} {mix}, {} under way", self.outstanding)
    }
}

/// All measured figures of some storage.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// One figure for each of [`loads`].
    pub figures: Vec<Figure>,
    /// One of these loads, measured once more at the end.
    pub again: Figure,
    /// Time of a flush after one small write.
    pub flush_us: f64,
    /// Size of the file that was used.
    pub file_bytes: u64,
}

impl Measured {
    /// Returns the figure of one of the loads that were measured.
    pub fn of(&self, load: Load) -> &Figure {
        self.figures.iter().find(|figure| figure.load == load).expect("all of them were measured")
    }

    /// Returns how long one request occupies a lane, microseconds. It is the larger of two values: the latency of a
    /// lone request, and the time per busy lane that the rate at depth implies.
    fn service_us(&self, lanes: f64, alone: Load, deep: Load) -> f64 {
        let busy = lanes.min(f64::from(deep.outstanding));
        self.of(alone).latency_us.max(busy * 1e6 / self.of(deep).iops.max(1.0))
    }

    fn iops_max(&self) -> f64 {
        let small = FITTED.iter().filter(|load| load.block_bytes == SMALL).map(|load| self.of(*load));
        small.map(|figure| figure.iops).fold(1.0, f64::max).min(IOPS_MAX)
    }

    /// Returns the highest rate, bytes per microsecond, which equals MB/s.
    fn bytes_per_us_max(&self) -> f64 {
        let large =
            [LARGE_READ_DEEP, LARGE_WRITE_DEEP].map(|load| self.of(load).iops * f64::from(LARGE) / 1e6);
        large[0].max(large[1]).max(1e-3)
    }

    /// Returns the requests that are served at the same time, by Little's law.
    fn lanes(&self, alone: Load, deep: Load) -> f64 {
        let busy = self.of(deep).iops * self.of(alone).latency_us / 1e6;
        busy.round().clamp(1.0, f64::from(deep.outstanding))
    }

    /// Returns what would have been measured on storage that takes `factor` times as long for everything.
    pub fn slower(&self, factor: f64) -> Measured {
        let slower = |Figure { load, iops, latency_us }: &Figure| Figure {
            load: *load,
            iops: iops / factor,
            latency_us: latency_us * factor,
        };
        Measured {
            figures: self.figures.iter().map(slower).collect(),
            again: slower(&self.again),
            flush_us: self.flush_us * factor,
            file_bytes: self.file_bytes,
        }
    }

    /// Returns the model under that name. Errors: figures with which no device works.
    pub fn model(&self, name: &str) -> Result<StorageModel> {
        let is_figure = |value: f64| value.is_finite() && value > 0.0;
        for Figure { load, iops, latency_us } in &self.figures {
            if !is_figure(*iops) || !is_figure(*latency_us) {
                let cause = format!("{}: {iops} IOPS at {latency_us} us is no measurement", load.text());
                return Err(Error::invalid(name, cause));
            }
        }
        StorageModel::parse(name, name, &self.text())
    }

    /// Returns the model's file as a user would write it.
    fn text(&self) -> String {
        let lanes = self.lanes(READ_ALONE, READ_DEEP);
        let write_lanes = self.lanes(WRITE_ALONE, WRITE_DEEP);
        let (read, read_rate) = split(
            self.service_us(lanes, READ_ALONE, READ_DEEP),
            self.service_us(lanes, LARGE_READ_ALONE, LARGE_READ_DEEP),
        );
        let (write, write_rate) = split(
            self.service_us(write_lanes, WRITE_ALONE, WRITE_DEEP),
            self.service_us(write_lanes, LARGE_WRITE_ALONE, LARGE_WRITE_DEEP),
        );
        let mut text = String::from(HEAD);
        let _ = writeln!(text, "left_out = [{LEFT_OUT}, \"what lies beyond {} bytes\"]", self.file_bytes);
        text += "[model]\nkind = \"flash\"\n";
        let mut constant = |name: &str, value: f64, unit: &str, note: &str| {
            let _ = writeln!(
                text,
                "{name} = {{ value = {value:.3}, unit = \"{unit}\", source = \"measured\", note = \"{note}\" }}"
            );
        };
        constant(
            "read",
            read,
            "us",
            "4 KiB random reads without transfer: 1 under way, or a lane's share at 32",
        );
        constant("write", write, "us", "4 KiB random writes, as reads");
        constant("flush", self.flush_us, "us", "behind one 4 KiB write");
        constant("read_rate", read_rate, "MB/s", "of one lane: 1 MiB reads against those of 4 KiB");
        constant("write_rate", write_rate, "MB/s", "of one lane: 1 MiB writes against those of 4 KiB");
        constant("lanes", lanes, "", "4 KiB random reads: the rate at 32, times the latency alone");
        constant("write_lanes", write_lanes, "", "4 KiB random writes, as the lanes of reads");
        let note = "the most 4 KiB requests at any depth, of reads or of writes";
        constant("iops_max", self.iops_max(), "1/s", note);
        constant("rate_max", self.bytes_per_us_max(), "MB/s", "1 MiB requests, 8 under way");
        text += "[calls]\n";
        let call_us = self.of(WRITE_ALONE).latency_us + self.flush_us;
        let _ = writeln!(
            text,
            "call = {{ value = {call_us:.3}, unit = \"us\", source = \"measured\", note = \"a 4 KiB write and its flush\" }}"
        );
        text + CALLS
    }
}

/// Splits the times of a small and a large request into (us without the transfer, MB/s of the transfer).
fn split(small_us: f64, large_us: f64) -> (f64, f64) {
    let per_byte_us = ((large_us - small_us) / f64::from(LARGE - SMALL)).max(0.0);
    // There is no limit where the larger request is no slower.
    let rate = if per_byte_us > 0.0 { 1.0 / per_byte_us } else { 0.0 };
    ((small_us - per_byte_us * f64::from(SMALL)).max(0.0), rate)
}

const HEAD: &str = "title = \"As it was measured\"\n";
const LEFT_OUT: &str = "\"heads, tiers and garbage collection\", \"caches, and when they are full\", \
                        \"what our daemon, a network and a hypervisor add\"";
const CALLS: &str = "\
open = { value = 1, source = \"declared\", note = \"the lock of the file\" }
create = { value = 5, source = \"declared\", note = \"lock, journal, resources, descriptor, directory\" }
lock = { value = 1, source = \"declared\", note = \"one on-disk lock\" }
close = { value = 1, source = \"declared\", note = \"the lock is given back\" }
change = { value = 5, source = \"declared\", note = \"growth: lock, journal, resources, descriptor, pointers\" }
ask = { value = 0, source = \"declared\", note = \"in memory\" }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ConstantSource;

    /// Returns the figures of a device with `lanes` that takes so long for each request, and 1 us for each KiB of it.
    fn measured(lanes: f64, read_us: f64, write_us: f64) -> Measured {
        measured_apart([lanes; 2], read_us, write_us)
    }

    /// Returns the figures of a device with separate lane counts: one for reads alone and mixed loads, one for writes
    /// alone.
    fn measured_apart([lanes, write_lanes]: [f64; 2], read_us: f64, write_us: f64) -> Measured {
        let figure = |load: Load| {
            let lanes = if load.read_percent == 0 { write_lanes } else { lanes };
            let reads = f64::from(load.read_percent) / 100.0;
            let transfer_us = f64::from(load.block_bytes) / 1024.0;
            let service_us = read_us * reads + write_us * (1.0 - reads) + transfer_us;
            let busy = f64::from(load.outstanding).min(lanes);
            Figure {
                load,
                iops: busy * 1e6 / service_us,
                latency_us: service_us * f64::from(load.outstanding) / busy,
            }
        };
        let figures = loads(70).into_iter().map(figure).collect();
        Measured { figures, again: figure(MIXED_DEEP), flush_us: 500.0, file_bytes: 1 << 30 }
    }

    #[test]
    fn a_device_of_that_kind_is_found_again() {
        let model = measured(16.0, 96.0, 46.0).model("here").unwrap();
        let near = |name: &str, wanted: f64| {
            let found = model.value(name).unwrap();
            assert!((found / wanted - 1.0).abs() < 0.01, "{name}: {found}, expected {wanted}");
        };
        near("read", 96e3);
        near("write", 46e3);
        near("flush", 500e3);
        near("lanes", 16.0);
        near("write_lanes", 16.0);
        near("read_rate", 1024e6);
        // Writes are faster: 16 of them take 50 us. Eight of 1 MiB in 1,070 us give the highest byte rate.
        near("rate_max", 8.0 * 1024.0 * 1024.0 / 1070e-6);
        near("iops_max", 1e6 / (50.0 / 16.0));
        let mut of_folder = model.constants().iter().filter(|c| !c.name.starts_with("calls."));
        assert!(of_folder.all(|c| c.source == ConstantSource::Measured));
    }

    /// A cache acknowledges a write at once, and has more writes under way than the medium has reads.
    #[test]
    fn deep_writes_are_as_fast_as_they_were() {
        let measured = measured_apart([4.0, 24.0], 96.0, 46.0);
        let model = measured.model("here").unwrap();
        assert_eq!((model.value("lanes").unwrap(), model.value("write_lanes").unwrap()), (4.0, 24.0));
        for load in [READ_ALONE, READ_DEEP, WRITE_ALONE, load(SMALL, 0, 8), WRITE_DEEP] {
            let figure = measured.of(load);
            let found = crate::predict::rate(figure, &model, 1).unwrap();
            assert!((found / figure.iops - 1.0).abs() < 0.1, "{}: {found}, {}", load.text(), figure.iops);
        }
    }

    #[test]
    fn odd_figures_make_a_model_all_the_same() {
        let mut odd = measured(1.0, 8000.0, 0.0);
        assert_eq!(odd.model("a disk").unwrap().value("lanes").unwrap(), 1.0);
        for figure in &mut odd.figures {
            (figure.iops, figure.latency_us) = (0.4, 2_500_000.0);
        }
        odd.model("a floppy").unwrap();
    }

    #[test]
    fn the_share_that_is_asked_for_is_measured_too() {
        assert_eq!(loads(70).len(), FITTED.len() + HELD_OUT.len() + 1, "4 KiB, 70 % reads, 8 under way");
        assert!(loads(33).contains(&asked(33)) && !asked(33).is_fitted());
        assert_eq!(loads(100).len(), FITTED.len() + HELD_OUT.len());
    }

    #[test]
    fn slower_storage_is_slower_in_everything() {
        let measured = measured(16.0, 96.0, 46.0);
        let (model, half) = (measured.model("a").unwrap(), measured.slower(2.0).model("a").unwrap());
        for (name, factor) in
            [("read", 2.0), ("flush", 2.0), ("calls.call", 2.0), ("iops_max", 0.5), ("rate_max", 0.5)]
        {
            let ratio = half.value(name).unwrap() / model.value(name).unwrap();
            assert!((ratio / factor - 1.0).abs() < 0.01, "{name}: {ratio}");
        }
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let mut none = measured(16.0, 96.0, 46.0);
        none.figures[3].latency_us = f64::NAN;
        let error = none.model("here").unwrap_err();
        assert!(error.cause.contains("NaN us is no measurement"), "{error}");
    }
}
