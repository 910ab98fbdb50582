//! A device as parameters, and how it is put to work.

use super::disk::Disk;
use super::group::{Group, Members};
use super::queue::Spindle;
use super::server::Server;
use crate::rng::Rng;

/// One device or array. Models nest.
#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    Disk(Disk),
    Group(Group),
}

impl Model {
    pub(crate) fn server(&self, rng: &mut Rng) -> Box<dyn Server> {
        match self {
            Model::Disk(disk) => Box::new(Spindle::new(disk.clone(), rng.fork())),
            Model::Group(group) => Box::new(Members::new(group.clone(), rng)),
        }
    }
}
