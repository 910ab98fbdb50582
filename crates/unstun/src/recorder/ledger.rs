//! Costs of the snapshots that have ended, which outlive the events and the record that they were calculated from: the file
//! `costs` of a VM's record, one JSON object per line.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use api::SnapshotCost;

const NAME: &str = "costs";
/// A file of this size loses its older half: each half has about 1,500 snapshots.
const BYTES_MAX: u64 = 4 << 20;

/// Returns the costs on file, in the order in which the snapshots ended. A line that does not parse, because a crash cut it
/// off, is left out.
///
/// # Errors
/// Those of the file system.
pub(super) fn read(folder: &Path) -> std::io::Result<Vec<SnapshotCost>> {
    match std::fs::read(folder.join(NAME)) {
        Ok(bytes) => {
            Ok(bytes.split(|&b| b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Adds costs.
///
/// # Errors
/// Those of the file system.
pub(super) fn append(folder: &Path, costs: &[SnapshotCost]) -> std::io::Result<()> {
    if costs.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    let path = folder.join(NAME);
    if path.metadata().is_ok_and(|file| file.len() >= BYTES_MAX) {
        let mut all = read(folder)?;
        let newer = all.split_off(all.len() / 2);
        let temporary = folder.join("costs.new");
        std::fs::write(&temporary, text(&newer))?;
        std::fs::rename(temporary, &path)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    // A line that was cut off ends here.
    file.write_all(format!("\n{}", text(costs)).as_bytes())
}

fn text(costs: &[SnapshotCost]) -> String {
    costs.iter().map(|cost| serde_json::to_string(cost).expect("a cost is JSON") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(name: &str) -> SnapshotCost {
        SnapshotCost {
            name: name.to_owned(),
            taken: None,
            commit_began: None,
            ended: None,
            end: None,
            take_stun_us: 0,
            commit_stun_us: 0,
            bytes_moved: 0,
            before: api::Load::default(),
            with: api::Load::default(),
            committing: api::Load::default(),
            after: api::Load::default(),
        }
    }

    #[test]
    fn costs_are_read_as_they_were_added_and_the_oldest_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("vm-1");
        append(&folder, &[cost("a"), cost("b")]).unwrap();
        let path = folder.join(NAME);
        let cut_off = path.metadata().unwrap().len() - 5;
        OpenOptions::new().append(true).open(&path).unwrap().set_len(cut_off).unwrap();
        append(&folder, &[cost("c")]).unwrap();
        let names = |folder: &Path| read(folder).unwrap().into_iter().map(|c| c.name).collect::<Vec<_>>();
        assert_eq!(names(&folder), ["a", "c"]);
        append(&folder, &vec![cost("d"); 6000]).unwrap();
        append(&folder, &[cost("e")]).unwrap();
        assert!(path.metadata().unwrap().len() < BYTES_MAX);
        assert_eq!(names(&folder).last().unwrap(), "e");
    }
}
