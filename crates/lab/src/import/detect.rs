//! Detects the format of a file by its first bytes.

/// Formats that can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    IometerConfig,
    IometerResults,
    FioJson,
    FioLog,
    /// Counters of Windows' performance monitor or of `esxtop -b`.
    Pdh,
    /// Statistics of vCenter, by PowerCLI.
    Vcenter,
    VmwareLog,
    Ping,
}

impl Format {
    pub const ALL: [Self; 8] = [
        Self::IometerConfig,
        Self::IometerResults,
        Self::FioJson,
        Self::FioLog,
        Self::Pdh,
        Self::Vcenter,
        Self::VmwareLog,
        Self::Ping,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::IometerConfig => "an IOmeter configuration (.icf)",
            Self::IometerResults => "IOmeter results (.csv)",
            Self::FioJson => "fio output (--output-format=json)",
            Self::FioLog => "a fio log (bw, iops, lat)",
            Self::Pdh => "performance counters (esxtop -b, perfmon)",
            Self::Vcenter => "statistics of vCenter (Get-Stat)",
            Self::VmwareLog => "vmware.log",
            Self::Ping => "the output of ping",
        }
    }
}

/// Detects the format by features that only it has; the strictest rule comes first.
pub(super) fn detect(head: &str) -> Option<Format> {
    let first = head.trim_start().trim_start_matches('"');
    if first.starts_with("(PDH-CSV") || first.starts_with("(PDH-TSV") {
        return Some(Format::Pdh);
    }
    let lines = || head.lines().map(str::trim_end);
    let any = |test: fn(&str) -> bool| lines().any(test);
    if any(|line| line.starts_with("'TEST SETUP") || line.starts_with("'ACCESS SPECIFICATIONS")) {
        return Some(Format::IometerConfig);
    }
    if any(|line| line.starts_with("'Target Type,") || line.starts_with("TimeStamp,'Target Type,")) {
        return Some(Format::IometerResults);
    }
    if any(|line| line.starts_with('{')) && head.contains("\"fio version\"") {
        return Some(Format::FioJson);
    }
    if any(super::vcenter::is_header) {
        return Some(Format::Vcenter);
    }
    if any(super::vmware::is_line) {
        return Some(Format::VmwareLog);
    }
    if any(super::ping::is_line) {
        return Some(Format::Ping);
    }
    let first = lines().find(|line| !line.is_empty())?;
    super::fio::log::is_line(first).then_some(Format::FioLog)
}
