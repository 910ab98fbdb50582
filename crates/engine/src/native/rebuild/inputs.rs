//! The parts that all steps of a rebuild work on.

use blk::{Env, File};

use super::anchor::Anchor;
use super::copy::Found;
use crate::options::Defects;

/// The parts that a rebuild works on.
pub(super) struct Rebuild<'a> {
    pub env: &'a Env,
    pub target: &'a File,
    pub anchor: &'a Anchor,
    pub found: &'a Found,
    pub defects: Defects,
}
