//! Small files in the exact syntax of each tool (`fuzz-corpus/`), and malformed ones.

mod hostile;
mod syntax;

use super::{Format, Imported, Selection, import};

const ICF: &str = include_str!("../../fuzz-corpus/import/iometer.icf");
const RESULTS: &str = include_str!("../../fuzz-corpus/import/iometer-results.csv");
const INSTANT: &str = include_str!("../../fuzz-corpus/import/iometer-instantaneous.csv");
const FIO: &str = include_str!("../../fuzz-corpus/import/fio.json");
const ESXTOP: &str = include_str!("../../fuzz-corpus/import/esxtop.csv");
const PERFMON: &str = include_str!("../../fuzz-corpus/import/perfmon.csv");
const VCENTER: &str = include_str!("../../fuzz-corpus/import/vcenter.csv");
const VMWARE: &str = include_str!("../../fuzz-corpus/import/vmware.log");
const LINUX_PING: &str = include_str!("../../fuzz-corpus/import/ping-linux.txt");
const WINDOWS_PING: &str = include_str!("../../fuzz-corpus/import/ping-windows.txt");
const FIO_LOG: &str = include_str!("../../fuzz-corpus/import/fio_lat.1.log");

/// One file of each format. Only the name of fio's log carries information.
const SOUND: [(&str, &str, Format); 11] = [
    ("a", ICF, Format::IometerConfig),
    ("b", RESULTS, Format::IometerResults),
    ("c", INSTANT, Format::IometerResults),
    ("d", FIO, Format::FioJson),
    ("e", ESXTOP, Format::Pdh),
    ("f", PERFMON, Format::Pdh),
    ("v", VCENTER, Format::Vcenter),
    ("g", VMWARE, Format::VmwareLog),
    ("h", LINUX_PING, Format::Ping),
    ("i", WINDOWS_PING, Format::Ping),
    ("x_lat.1.log", FIO_LOG, Format::FioLog),
];

fn imported(name: &str, bytes: &[u8]) -> blk::Result<Imported> {
    let mut input = bytes;
    import(name, &mut input, &Selection::default())
}

fn read(text: &str) -> Imported {
    imported("file", text.as_bytes()).expect("read")
}
