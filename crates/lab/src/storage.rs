//! Storage models by name, each constant with its unit and its source.
//!
//! A model is a TOML file: a tree of parts (`kind` = disk, flash, mirror, stripe, parity, cached, tiered, remote) whose
//! numbers are constants `{ value, unit, source, note }`. A constant's name is its path in the tree, such as
//! `back.member.overhead`. The files that ship are in `experiments/storage`; a user's own file is read the same way.
//!
//! ```
//! use lab::storage::{StorageModel, fit};
//!
//! let pair = StorageModel::named("sas-10k-pair").unwrap();
//! let options = sim::Options {
//!     storage: Some(pair.storage()),
//!     content: sim::ContentMode::Applied,
//!     ..sim::Options::default()
//! };
//! let world = sim::SimWorld::new(1, options);
//! world.run(|env| async move {
//!     // The model places a file at its first use, and simulates heads and queues from here on.
//!     let file = env.open_root("/").unwrap().create_new("disk").await.unwrap();
//!     file.allocate(0, 4 << 30).await.unwrap();
//!     file.write(1 << 30, blk::Buf::zeroed(4096)).await.unwrap();
//! });
//! assert!(world.now_ns() > 1_000_000);
//!
//! // This fits one constant to a baseline row; no other figure of an experiment may influence it.
//! let measure = |model: &StorageModel| Ok(1e9 / model.value("member.overhead")?);
//! let fitted = fit::fit(&pair, "member.overhead", 0.01..1.0, 5_000.0, 0.01, measure).unwrap();
//! assert!((measure(&fitted).unwrap() / 5_000.0 - 1.0).abs() < 0.01);
//! ```
//!
//! For deltas on a LUN of their own use [`StorageModel::with_delta_lun`].

mod build;
pub mod fit;
mod kinds;
pub mod measured;
mod parse;
mod presets;
mod unit;

use blk::{Error, Result};
use sim::{Place, Storage};

use crate::run::{Constant, ConstantSource};
use kinds::Part;
pub(crate) use parse::line_of;
pub use presets::names;

/// A block of VMFS, the unit of space allocation for files, bytes.
const EXTENT_BYTES: u64 = 1 << 20;

/// Model of a device or array in which every number has a source.
#[derive(Debug, Clone, PartialEq)]
pub struct StorageModel {
    /// Name in experiments, or the path of the model's file.
    pub name: String,
    pub title: String,
    /// What the model leaves out, one sentence each.
    pub left_out: Vec<String>,
    part: Part,
    constants: Vec<Constant>,
}

impl StorageModel {
    /// Returns a model that ships. Errors: `NotFound`, with the names there are.
    pub fn named(name: &str) -> Result<StorageModel> {
        let Some((text, place)) = presets::text(name) else {
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(Error::not_found(name, format!("no storage model of this name; there are {known}")));
        };
        parse::parse(name, &place, text)
    }

    /// Parses a model from the text of a file; `place` is its name as the user gave it.
    ///
    /// Errors: `Invalid`, with `place:line`, the key, what was found and what is possible.
    pub fn parse(name: &str, place: &str, text: &str) -> Result<StorageModel> {
        parse::parse(name, place, text)
    }

    /// Returns all constants in the order of the file, to be printed under every result.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// Returns a constant in nanoseconds, bytes, bytes a second or pieces, whatever the unit in the file is. Errors:
    /// `NotFound`.
    pub fn value(&self, constant: &str) -> Result<f64> {
        let found =
            self.constants.iter().find(|c| c.name == constant).ok_or_else(|| self.unknown(constant))?;
        Ok(unit::base(found))
    }

    /// Returns the same model with another value for one constant, in the constant's own unit.
    ///
    /// Errors: `NotFound` with the names there are, `Invalid` where the device would not work.
    pub fn with(
        &self,
        constant: &str,
        value: f64,
        source: ConstantSource,
        note: &str,
    ) -> Result<StorageModel> {
        let mut model = self.clone();
        let found = model.constants.iter_mut().find(|c| c.name == constant);
        let found = found.ok_or_else(|| self.unknown(constant))?;
        (found.value, found.source, found.note) = (value, source, note.to_string());
        model.check().map_err(|(_, cause)| Error::invalid(self.name.as_str(), cause))?;
        Ok(model)
    }

    fn unknown(&self, constant: &str) -> Error {
        let known = self.constants.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
        Error::not_found(&self.name, format!("no constant {constant}; there are {known}"))
    }

    /// Returns how many constants were fitted to a baseline.
    pub fn fitted(&self) -> usize {
        self.constants.iter().filter(|c| c.source == ConstantSource::FittedToBaseline).count()
    }

    /// Returns one LUN of this model that holds everything, in the form of the simulator.
    pub fn storage(&self) -> Storage {
        Storage { units: vec![self.unit()], places: Vec::new(), extent_bytes: EXTENT_BYTES }
    }

    /// Returns storage that has a second LUN for files and folders whose name contains `part`.
    pub fn with_delta_lun(&self, other: &StorageModel, part: &str) -> Storage {
        let place = Place { part: part.to_string(), unit: 1, from_bytes: 0 };
        Storage { units: vec![self.unit(), other.unit()], places: vec![place], ..self.storage() }
    }
}
