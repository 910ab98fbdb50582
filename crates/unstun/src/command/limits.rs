//! Limits of a VM: the options of `vm set`, and what `vm show` says about them.

use api::client::Client;
use api::error::{Error, Result};
use api::name::VmName;
use api::{Vm, VmLimits};

use crate::cli::{Limit, SetLimits};

/// Returns the limits of the VM as the options change them, or None if no option names a limit.
pub(super) async fn changed(vm: &VmName, options: &SetLimits, client: &Client) -> Result<Option<VmLimits>> {
    if !is_given(options) {
        return Ok(None);
    }
    let limits = merged(client.vm_show(vm).await?.limits, options);
    limits.check().map_err(|cause| Error::invalid(format!("VM {vm}: {cause}")))?;
    if options.burst_seconds.is_some()
        && limits.iops_burst.is_none()
        && limits.bandwidth_burst_bytes_s.is_none()
    {
        let cause = "--burst-seconds without a burst: expected --iops-burst or --bandwidth-burst too";
        return Err(Error::invalid(format!("VM {vm}: {cause}")));
    }
    Ok(Some(limits))
}

fn is_given(options: &SetLimits) -> bool {
    let SetLimits { iops, iops_burst, bandwidth, bandwidth_burst, burst_seconds, weight } = options;
    let limits = [iops, iops_burst, bandwidth, bandwidth_burst];
    limits.iter().any(|limit| limit.is_some()) || burst_seconds.is_some() || weight.is_some()
}

/// Applies the options to the present limits. A limit that is removed takes its burst along.
fn merged(now: VmLimits, options: &SetLimits) -> VmLimits {
    let pair = |limit: Option<Limit>, burst: Option<Limit>, now: Option<u64>, now_burst: Option<u64>| {
        let limit = limit.map_or(now, |Limit(limit)| limit);
        (limit, burst.map_or(now_burst.filter(|_| limit.is_some()), |Limit(burst)| burst))
    };
    let (iops, iops_burst) = pair(options.iops, options.iops_burst, now.iops, now.iops_burst);
    let (bandwidth_bytes_s, bandwidth_burst_bytes_s) =
        pair(options.bandwidth, options.bandwidth_burst, now.bandwidth_bytes_s, now.bandwidth_burst_bytes_s);
    let burst_s = options.burst_seconds.unwrap_or(now.burst_s);
    let weight = options.weight.unwrap_or(now.weight);
    VmLimits { iops, iops_burst, bandwidth_bytes_s, bandwidth_burst_bytes_s, burst_s, weight }
}

/// Returns the line of `vm show` about a VM whose requests wait for its limits.
pub(super) fn delayed(vm: &Vm) -> String {
    let (count, name) = (vm.delayed_requests, &vm.name);
    let requests = if count == 1 { "1 request waits".to_owned() } else { format!("{count} requests wait") };
    let remedy = format!("`unstun vm set {name} --iops none --bandwidth none` removes the limits");
    format!("{requests}: the VM has reached its limit ({}); {remedy}", vm.limits.describe())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: SetLimits = SetLimits {
        iops: None,
        iops_burst: None,
        bandwidth: None,
        bandwidth_burst: None,
        burst_seconds: None,
        weight: None,
    };

    #[test]
    fn options_change_what_they_name() {
        assert!(!is_given(&NONE));
        let iops = SetLimits { iops: Some(Limit(Some(2000))), iops_burst: Some(Limit(Some(5000))), ..NONE };
        let first = merged(VmLimits::default(), &iops);
        assert_eq!(
            (first.iops, first.iops_burst, first.burst_s, first.weight),
            (Some(2000), Some(5000), 10, 100)
        );
        let bandwidth = SetLimits { bandwidth: Some(Limit(Some(100 << 20))), weight: Some(50), ..NONE };
        assert!(is_given(&bandwidth));
        let second = merged(first, &bandwidth);
        assert_eq!(second, VmLimits { bandwidth_bytes_s: Some(100 << 20), weight: 50, ..first });
        let removed = merged(second, &SetLimits { iops: Some(Limit(None)), ..NONE });
        assert_eq!(removed, VmLimits { iops: None, iops_burst: None, ..second }, "the burst is removed too");
        let no_burst = merged(second, &SetLimits { iops_burst: Some(Limit(None)), ..NONE });
        assert_eq!(no_burst, VmLimits { iops_burst: None, ..second });
    }
}
