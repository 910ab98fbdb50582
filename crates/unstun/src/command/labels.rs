//! Labels of a VM: the options of `vm set`.

use api::VmLabels;
use api::client::Client;
use api::error::{Error, Result};
use api::name::VmName;

use crate::cli::SetLabels;

/// Returns the labels of the VM as the options change them, or None if no option names one.
pub(super) async fn changed(vm: &VmName, options: &SetLabels, client: &Client) -> Result<Option<VmLabels>> {
    let SetLabels { add_tag, remove_tag, note } = options;
    if add_tag.is_empty() && remove_tag.is_empty() && note.is_none() {
        return Ok(None);
    }
    let now = client.vm_show(vm).await?;
    let mut tags = now.tags;
    tags.extend(add_tag.iter().filter(|tag| !remove_tag.contains(tag)).cloned());
    tags.retain(|tag| !remove_tag.contains(tag));
    let labels = VmLabels { tags, note: note.clone().unwrap_or(now.note) };
    labels.check().map_err(|cause| Error::invalid(format!("VM {vm}: {cause}")))?;
    Ok(Some(labels))
}
