//! The lab: where engine, formats and simulator meet.

pub mod compare;
pub mod experiment;
pub mod figures;
pub mod import;
pub mod modelled;
pub mod plain;
pub mod predict;
pub mod probe;
pub mod real;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod runner;
pub mod storage;
pub mod subject;
pub mod sweep;
pub mod vmware;
pub mod workload;
