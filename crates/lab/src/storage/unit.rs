//! Units of constants. A constant keeps the unit of its source; models calculate in ns, bytes, bytes a second and
//! pieces.

use crate::run::Constant;

/// What a constant measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    Time,
    Bytes,
    /// Bytes a second.
    Rate,
    /// Events a second.
    PerSecond,
    Count,
}

const UNITS: &[(&str, Quantity, f64)] = &[
    ("ns", Quantity::Time, 1.0),
    ("us", Quantity::Time, 1e3),
    ("ms", Quantity::Time, 1e6),
    ("s", Quantity::Time, 1e9),
    ("bytes", Quantity::Bytes, 1.0),
    ("KiB", Quantity::Bytes, 1024.0),
    ("MiB", Quantity::Bytes, 1_048_576.0),
    ("GiB", Quantity::Bytes, 1_073_741_824.0),
    ("TiB", Quantity::Bytes, 1_099_511_627_776.0),
    ("GB", Quantity::Bytes, 1e9),
    ("TB", Quantity::Bytes, 1e12),
    ("MB/s", Quantity::Rate, 1e6),
    ("GB/s", Quantity::Rate, 1e9),
    ("1/s", Quantity::PerSecond, 1.0),
    ("", Quantity::Count, 1.0),
];

/// Returns one of the unit in the unit that models calculate in; None where the unit measures another quantity.
pub(super) fn factor(unit: &str, quantity: Quantity) -> Option<f64> {
    UNITS.iter().find(|(name, of, _)| *name == unit && *of == quantity).map(|(.., factor)| *factor)
}

/// Returns the possible units for a message: `"ns", "us"`.
pub(super) fn possible(quantity: Quantity) -> String {
    let names = UNITS.iter().filter(|(_, of, _)| *of == quantity).map(|(name, ..)| format!("{name:?}"));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the value in the unit that models calculate in. The parser admits only units of the table.
pub(super) fn base(constant: &Constant) -> f64 {
    let factor = UNITS.iter().find(|(name, ..)| *name == constant.unit).map_or(1.0, |(.., factor)| *factor);
    constant.value * factor
}
