//! The lab: what a snapshot costs, measured on real storage and on modelled storage in virtual time, and the published
//! experiments played again. The program is `unstun-lab`; the daemon links none of this.

pub mod cli;
mod command;
pub mod compare;
pub mod demo;
mod devices;
pub mod experiment;
mod figures;
pub mod import;
pub mod modelled;
pub mod peers;
pub mod plain;
mod predict;
mod probe;
pub mod real;
pub mod report;
mod reproduce;
pub mod run;
pub mod runner;
mod sensitivity;
pub mod storage;
pub mod subject;
mod sweep;
pub mod vmware;
pub mod workload;
