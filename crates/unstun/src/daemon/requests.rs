//! Requests of the API: the bridge from its thread to the core's, and the conversion of types.

pub(super) mod alarm_figures;
pub(super) mod answer;
pub(super) mod api_types;
pub(super) mod bridge;
pub(super) mod metrics;
pub(super) mod operations;
pub(super) mod prepare;
