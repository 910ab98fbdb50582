//! Requests of the API: the bridge from its thread to the core's, and the conversion of types.

pub mod api_types;
pub mod bridge;
pub mod operations;
pub mod prepare;
