//! The models that ship.

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../experiments/storage/", $name, ".toml")))),*]
    };
}

const PRESETS: &[(&str, &str)] = presets![
    "local-2011",
    "nfs-2016",
    "nvme",
    "powerstore-nvme",
    "ps4100x",
    "sas-10k-pair",
    "sas-10k-raid10",
    "sas-10k-raid5",
    "sas-10k-stripe",
    "sata-ssd",
    "scsi-15k-2002",
    "ssd-mirror",
    "v7000-sas",
    "v7000-ssd",
    "v7000-ssd-write-cache",
    "v7000-tiered",
];

/// Returns the names of the models that ship, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// Returns the file's text, and its name for messages.
pub(super) fn text(name: &str) -> Option<(&'static str, String)> {
    let (name, text) = PRESETS.iter().find(|(known, _)| *known == name)?;
    Some((text, format!("experiments/storage/{name}.toml")))
}
