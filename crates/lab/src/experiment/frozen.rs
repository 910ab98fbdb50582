//! The frozen state of the models: a name, a date, and a hash of everything that decides a prediction.
//!
//! The hash covers the sources of the models of VMware, of other stacks and of the simulated devices without their comments and tests, the
//! storage models, and the experiments without what they do not give to a run. The test
//! `tests/integration/frozen.rs` computes it, and refuses a change of any of them without a new state
//! (`experiments/frozen.toml`).

use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

/// A state, as `experiments/frozen.toml` has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub name: String,
    pub date: String,
    pub hash: String,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.date, self.hash)
    }
}

/// Returns the state that this program was built with.
pub fn state() -> &'static State {
    static STATE: LazyLock<State> = LazyLock::new(|| {
        let text = include_str!("../../../../experiments/frozen.toml");
        toml::from_str(text).expect("a test reads it")
    });
    &STATE
}
