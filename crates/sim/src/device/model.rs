//! Parameters of a device, and their translation to a server.

use super::cached::{Cached, Controller};
use super::disk::Disk;
use super::flash::{Flash, Lanes};
use super::group::{Group, Members};
use super::queue::Spindle;
use super::remote::{FileServer, Remote};
use super::server::Server;
use super::tiered::{Tiered, Tiers};
use crate::rng::Rng;

/// One device or array. Models nest.
#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    Disk(Disk),
    Flash(Flash),
    Group(Group),
    Cached(Cached),
    Tiered(Tiered),
    Remote(Remote),
}

impl Model {
    pub(crate) fn server(&self, rng: &mut Rng) -> Box<dyn Server> {
        match self {
            Model::Disk(disk) => Box::new(Spindle::new(disk.clone(), rng.fork())),
            Model::Flash(flash) => Box::new(Lanes::new(*flash)),
            Model::Group(group) => Box::new(Members::new(group.clone(), rng)),
            Model::Cached(cached) => Box::new(Controller::new(cached.clone(), rng)),
            Model::Tiered(tiered) => Box::new(Tiers::new(tiered, rng)),
            Model::Remote(remote) => Box::new(FileServer::new(remote.clone(), rng)),
        }
    }
}
