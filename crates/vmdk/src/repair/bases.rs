//! Writes missing descriptors of bases, derived from the flat extent and from the links that were made on it.

use std::collections::BTreeSet;

use blk::reactor::OpenMode;
use blk::{Result, SECTOR};

use super::{Action, Mend, PlanDraft};
use crate::check::{Inventory, Place, descriptor_of};
use crate::descriptor::{ContentId, Descriptor, NewBase};
use crate::probe::Content;
use crate::text::{check_name, shown};

const FIELD: &str = "its descriptor";
const ENDING: &str = "-flat.vmdk";

/// Plans a descriptor for each flat extent that no descriptor names.
pub(super) async fn mend(inventory: &Inventory<'_>, draft: &mut PlanDraft) {
    for (extent, content) in &inventory.contents {
        let unnamed = *content == Content::Other && inventory.who_names(extent).is_empty();
        let Some(name) = descriptor_of(extent).filter(|_| unnamed && extent.ends_with(ENDING)) else {
            continue;
        };
        let rebuilt = match length(inventory, extent).await {
            Ok(bytes) => rebuilt(inventory, extent, bytes, &name),
            Err(error) => Err(error.to_string()),
        };
        match rebuilt {
            Ok((link, reason)) => write(&name, extent, &link, reason, draft),
            Err(reason) => draft.refuse(inventory.path(extent), FIELD, reason),
        }
        inventory.dir.env().next_turn().await;
    }
}

async fn length(inventory: &Inventory<'_>, extent: &str) -> Result<u64> {
    inventory.dir.open(extent, OpenMode::Read).await?.size().await
}

/// Returns the descriptor and the evidence for it, or why none is written.
fn rebuilt(
    inventory: &Inventory<'_>,
    extent: &str,
    bytes: u64,
    name: &str,
) -> Result<(Descriptor, String), String> {
    check_name(inventory.dir.path(), "the file name", extent).map_err(|error| error.to_string())?;
    if inventory.names.contains(name) {
        return Err(format!("{} is here and does not name this file; move it away first", shown(name)));
    }
    if let Some(other) = made_on(inventory, name, Place::Outside).next() {
        return Err(format!(
            "{} was made on a {} of another folder, which may be this one",
            other.file(),
            shown(name)
        ));
    }
    let expected: BTreeSet<(u32, u64)> = made_on(inventory, name, Place::Missing)
        .map(|link| (link.parent_cid().unwrap_or_default(), link.capacity_sectors()))
        .collect();
    let wanted = expected.first().copied();
    if expected.len() > 1 {
        let said: Vec<String> =
            expected.iter().map(|(cid, sectors)| format!("CID {cid:08x} and {sectors} sectors")).collect();
        return Err(format!("the links made on {} expect different bases: {}", shown(name), said.join(", ")));
    }
    if !bytes.is_multiple_of(SECTOR) || wanted.is_some_and(|(_, sectors)| sectors * SECTOR != bytes) {
        let sectors = wanted.map_or("whole sectors".into(), |(_, sectors)| format!("{sectors} sectors"));
        return Err(format!("the file has {bytes} bytes and should have {sectors}: it was cut or resized"));
    }
    let env = inventory.dir.env();
    let random = || (u128::from(env.random()) << 64) | u128::from(env.random());
    let content_id = match wanted {
        Some((cid, _)) => ContentId::with_cid(random(), cid),
        None => ContentId::from_random(random()),
    };
    let base = NewBase {
        extent_file: extent,
        capacity_sectors: bytes / SECTOR,
        content_id,
        uuid: random(),
        prepared_for: None,
    };
    let link = base.descriptor(&inventory.path(name)).map_err(|error| error.to_string())?;
    let reason = match wanted {
        Some(_) => "the links made on it expect this CID and this size, and the extent has the size",
        None => "the extent has this size, and no link here was made on it",
    };
    Ok((link, reason.into()))
}

/// Returns the links whose hints end in `name` and lead to `place`.
fn made_on<'a>(
    inventory: &'a Inventory<'_>,
    name: &'a str,
    place: Place,
) -> impl Iterator<Item = &'a Descriptor> {
    inventory.links.values().filter(move |link| {
        let hint = link.parent_hint().and_then(|hint| hint.rsplit(['/', '\\']).next());
        hint == Some(name) && inventory.locate_parent(link).as_ref() == Some(&place)
    })
}

fn write(name: &str, extent: &str, link: &Descriptor, reason: String, draft: &mut PlanDraft) {
    let text = link.to_bytes();
    let lines = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
    let caution = "whether the base was written after those links were made is lost with the old descriptor, and so are its \
                   adapter type, geometry and ddb.uuid";
    draft.changes.like.insert(name.into(), extent.into());
    draft.write(
        text,
        Mend { file: name.into(), action: Action::Create, lines, reason, caution: Some(caution.into()) },
    );
}
