//! Repairs of truncated deltas.

use super::*;
use crate::check::tests::patch;

const DELTA: &str = "web-000002-delta.vmdk";

/// Truncates a delta. Header and directory take 5 sectors. The first table is at 8 and its eight grains at 40; the
/// second table, at 48, has one grain, at 80, of sector 4096 of the disk. 88 sectors are in use.
fn cut_at(bytes: usize) -> Files {
    let mut files = sound();
    files.get_mut(DELTA).unwrap().truncate(bytes);
    files
}

fn lost(plan: &Plan) -> Vec<&str> {
    let mends = plan.mends.iter().filter(|mend| mend.action == Action::Cut);
    mends.flat_map(|mend| &mend.lines).map(String::as_str).collect()
}

#[test]
fn lost_ranges_are_listed_and_given_up_only_on_request() {
    let files = cut_at(80 * 512 + 100);
    let plan = planned(&files, RepairOptions::default());
    assert!(plan.is_empty() && !plan.before.is_sound(), "{plan:?}");
    let said = reasons(&plan);
    assert!(
        said.contains("--cut-deltas gives up what is lost for good, 1 range of the disk is lost, 512 bytes"),
        "{said}"
    );
    let plan = planned(&files, vouched());
    assert_eq!(lost(&plan), ["lost: bytes 2097152 to 2097664"]);
    assert!(plan.after.is_sound(), "{plan:?}");
    let mended = repaired(&files, vouched());
    assert_eq!(mended[DELTA].len(), files[DELTA].len());
    assert_eq!(mended[DELTA][40 * 512..48 * 512], files[DELTA][40 * 512..48 * 512], "no data is written");
}

#[test]
fn every_length_is_mended_or_refused_with_its_reason() {
    let whole = sound()[DELTA].len();
    for bytes in (0..whole).step_by(512 * 3 + 17) {
        let files = cut_at(bytes);
        let plan = planned(&files, vouched());
        let is_cut = plan.mends.iter().any(|mend| mend.action == Action::Cut);
        match bytes {
            _ if bytes >= 88 * 512 => assert!(plan.is_empty() && plan.after.is_sound(), "{bytes}: {plan:?}"),
            _ if bytes >= 5 * 512 => {
                assert!(is_cut && plan.after.is_sound(), "{bytes}: {plan:?}");
                assert_eq!(lost(&plan).is_empty(), bytes >= 81 * 512, "{bytes}: {plan:?}");
                repaired(&files, vouched());
            }
            _ => assert!(!is_cut && !plan.after.is_sound(), "{bytes}: {plan:?}"),
        }
    }
}

#[test]
fn a_table_that_is_cut_loses_all_that_it_may_have_named() {
    let files = cut_at(60 * 512);
    let plan = planned(&files, vouched());
    assert_eq!(lost(&plan), ["lost: bytes 2097152 to 3145728"]);
    assert!(plan.mends[0].reason.contains("a table is lost"), "{plan:?}");
    let plan = planned(&cut_at(43 * 512), vouched());
    assert_eq!(lost(&plan), ["lost: bytes 1536 to 4096", "lost: bytes 2097152 to 3145728"]);
    let plan = planned(&cut_at(4 * 512), vouched());
    assert!(reasons(&plan).contains("cut inside of its directory"), "{}", reasons(&plan));
}

#[test]
fn a_delta_that_was_not_closed_is_mended_by_its_tables() {
    let mut files = cut_at(80 * 512);
    patch(&mut files, DELTA, 1648, &[1]);
    let plan = planned(&files, vouched());
    assert_eq!(lost(&plan), ["lost: bytes 2097152 to 2097664"]);
    let mended = repaired(&files, vouched());
    assert_eq!(mended[DELTA][..2048], files[DELTA][..2048], "its free pointer means nothing");
}

#[test]
fn a_table_with_other_damage_is_not_touched() {
    let mut files = cut_at(80 * 512);
    // Its first entry leads into the directory.
    patch(&mut files, DELTA, 8 * 512, &[4]);
    let plan = planned(&files, vouched());
    assert!(plan.is_empty(), "{plan:?}");
}

#[test]
fn a_repair_of_a_delta_that_was_written_since_is_not_undone() {
    let files = cut_at(80 * 512);
    let world = world_of(&files);
    let error = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        apply(&dir, &plan(&dir, &vouched()).await.unwrap()).await.unwrap();
        let file = dir.open(DELTA, blk::reactor::OpenMode::Write).await.unwrap();
        let mut table = blk::Buf::zeroed(512);
        table[0] = 40;
        file.write(48 * 512, table).await.unwrap();
        undo(&dir).await.unwrap_err()
    });
    let error = error.unwrap();
    assert_eq!(error.kind, blk::ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("changed since"), "{error}");
}
