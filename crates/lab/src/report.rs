//! The output of runs: pages, charts, tables, workbooks. These are pure functions of `Record`s: no clock, no files.
//!
//! Records may be imported, so every name and text in them is untrusted. Each writer escapes its input.

#[cfg(test)]
mod agreement_tests;
mod chart;
pub mod csv;
pub mod html;
pub(crate) mod index;
pub mod json;
#[cfg(test)]
mod page_tests;
mod scale;
mod series;
mod side_by_side;
pub mod svg;
mod table;
#[cfg(test)]
mod tests;
pub mod text;
mod verdict;
mod words;
pub mod xlsx;

pub use series::extent;
pub use table::{comparisons, is_kept};
pub use words::{figure as figure_name, phase as phase_name};
