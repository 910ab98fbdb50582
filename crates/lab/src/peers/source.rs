//! Constants of the models, as a record shows them.

use crate::run::{Constant, ConstantSource};

/// Returns a constant that a document or a source states; `note` names it.
pub(super) fn known(name: &str, value: u64, unit: &str, note: &str) -> Constant {
    constant(name, value, unit, ConstantSource::DataSheet, note)
}

/// Returns a constant that is assumed; `note` tells why.
pub(super) fn declared(name: &str, value: u64, unit: &str, note: &str) -> Constant {
    constant(name, value, unit, ConstantSource::Declared, note)
}

fn constant(name: &str, value: u64, unit: &str, source: ConstantSource, note: &str) -> Constant {
    let [name, unit, note] = [name, unit, note].map(String::from);
    Constant { name, value: value as f64, unit, source, note }
}
