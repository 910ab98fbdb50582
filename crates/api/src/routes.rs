//! The routes of the API under `/api/v1`, from which the client and the description of the API are made.

/// Calls a macro with all routes, each as `METHOD "PATH" => name(arguments) -> Answer as STATUS, Body: value;`. The path
/// contains the names of arguments; the status of success is 200 where none is given.
macro_rules! with_routes {
    ($with:ident) => {
        $with! {
            GET "/status" => status() -> Status;
            GET "/datastores" => datastore_list() -> Vec<crate::Datastore>;
            POST "/datastores" =>
                datastore_add(request: &DatastoreAdd) -> crate::Datastore as 201, DatastoreAdd: request;
            DELETE "/datastores/{name}" => datastore_remove(name: &DatastoreName) -> DatastoreRemoved;
            POST "/datastores/{name}/remove/preview" =>
                datastore_remove_preview(name: &DatastoreName) -> DatastoreRemovePreview;
            POST "/check?datastore={datastore}" => store_check(datastore: &DatastoreName) -> Checked;
            POST "/scrub?datastore={datastore}" => store_scrub(datastore: &DatastoreName) -> Job as 202;
            GET "/scrub?datastore={datastore}" => store_scrubbed(datastore: &DatastoreName) -> Checked;
            GET "/sources" => source_list() -> Vec<crate::Source>;
            POST "/sources/{number}/copy?datastore={datastore}" =>
                source_copy(number: u64, datastore: &DatastoreName) -> Job as 202;
            GET "/bin?datastore={datastore}" => bin_list(datastore: &DatastoreName) -> Vec<BinEntry>;
            POST "/bin/restore" => bin_restore(request: &BinRestore) -> BinRestored, BinRestore: request;
            POST "/bin/empty" => bin_empty(request: &BinEmpty) -> BinEmptied, BinEmpty: request;
            POST "/bin/empty/preview" =>
                bin_empty_preview(request: &BinEmpty) -> BinEmptied, BinEmpty: request;
            POST "/import" => vm_import(request: &VmImport) -> Vm as 201, VmImport: request;

            GET "/vms" => vm_list() -> Vec<VmSummary>;
            POST "/vms" => vm_create(request: &VmCreate) -> Vm as 201, VmCreate: request;
            GET "/vms/{vm}" => vm_show(vm: &VmName) -> Vm;
            DELETE "/vms/{vm}?delete_disks={delete_disks}&purge={purge}&keep={keep}" =>
                vm_remove(vm: &VmName, delete_disks: bool, purge: bool, keep: bool) -> VmRemoved;
            GET "/vms/{vm}/space" => vm_space(vm: &VmName) -> VmSpace;
            POST "/vms/{vm}/remove/preview" =>
                vm_remove_preview(vm: &VmName, request: &VmRemove) -> VmRemovePreview, VmRemove: request;
            POST "/vms/{vm}/clone" => vm_clone(vm: &VmName, request: &VmClone) -> Vm as 201, VmClone: request;
            POST "/vms/{vm}/rename" => vm_rename(vm: &VmName, request: &VmRename) -> Vm, VmRename: request;
            POST "/vms/{vm}/defragment" =>
                vm_defragment(vm: &VmName, request: &VmDefragment) -> Job as 202, VmDefragment: request;
            POST "/vms/{vm}/move" => vm_move(vm: &VmName, request: &VmMove) -> Job as 202, VmMove: request;
            POST "/vms/{vm}/move/preview" =>
                vm_move_preview(vm: &VmName, request: &VmMove) -> VmMovePreview, VmMove: request;
            POST "/vms/{vm}/close" =>
                vm_close(vm: &VmName, disconnect: bool) -> VmClosed, Disconnect: &Disconnect { disconnect };
            POST "/vms/{vm}/open" => vm_open(vm: &VmName, request: &VmOpen) -> Vm, VmOpen: request;
            PUT "/vms/{vm}/shared-writers" =>
                vm_set_shared_writers(vm: &VmName, shared: bool) -> Vm, SharedWriters: &SharedWriters { shared };
            PUT "/vms/{vm}/limits" => vm_set_limits(vm: &VmName, request: &VmLimits) -> Vm, VmLimits: request;
            PUT "/vms/{vm}/labels" => vm_set_labels(vm: &VmName, request: &VmLabels) -> Vm, VmLabels: request;
            PUT "/vms/{vm}/guest" => vm_set_guest(vm: &VmName, request: &VmGuest) -> Vm, VmGuest: request;
            PUT "/vms/{vm}/snapshot-dir" =>
                vm_set_snapshot_dir(vm: &VmName, request: &SnapshotDir) -> Vm, SnapshotDir: request;
            POST "/vms/{vm}/reset" => vm_reset(vm: &VmName, request: &Reset) -> Loss, Reset: request;
            POST "/vms/{vm}/reset/preview" =>
                reset_preview(vm: &VmName, request: &Reset) -> Loss, Reset: request;
            GET "/vms/{vm}/events?after={after}" => events(vm: &VmName, after: u64) -> Vec<Event>;
            GET "/vms/{vm}/record?from={from}&until={until}&step_s={step_s}" =>
                vm_recorded(vm: &VmName, from: Timestamp, until: Timestamp, step_s: u64) -> Recorded;
            GET "/vms/{vm}/cost?since={since}&until={until}" =>
                vm_cost(vm: &VmName, since: Timestamp, until: Timestamp) -> VmCost;
            POST "/vms/{vm}/disks" =>
                disk_add(vm: &VmName, disk: &DiskCreate) -> Disk as 201, DiskCreate: disk;
            DELETE "/vms/{vm}/disks/{number}?delete_files={delete_files}" =>
                disk_remove(vm: &VmName, number: u32, delete_files: bool) -> DiskRemoved;
            PUT "/vms/{vm}/disks/{number}/size" =>
                disk_grow(vm: &VmName, number: u32, request: &DiskGrow) -> DiskGrown, DiskGrow: request;
            PUT "/vms/{vm}/disks/{number}/mode" =>
                disk_set_mode(vm: &VmName, number: u32, request: &DiskSetMode) -> Disk, DiskSetMode: request;
            GET "/vms/{vm}/snapshots" => snapshot_tree(vm: &VmName) -> SnapshotTree;
            POST "/vms/{vm}/snapshots" =>
                snapshot_take(vm: &VmName, request: &SnapshotTake) -> SnapshotTaken as 201, SnapshotTake: request;
            POST "/vms/{vm}/snapshots/rename" =>
                snapshot_rename(vm: &VmName, request: &SnapshotRename) -> Snapshot, SnapshotRename: request;
            GET "/vms/{vm}/memory/{snapshot}" =>
                snapshot_memory(vm: &VmName, snapshot: &SnapshotRef) -> SnapshotMemory;
            POST "/vms/{vm}/diff" => snapshot_diff(vm: &VmName, request: &Diff) -> Differences, Diff: request;
            POST "/vms/{vm}/commit" =>
                snapshot_commit(vm: &VmName, target: &CommitTarget) -> Job as 202, CommitTarget: target;
            POST "/vms/{vm}/commit/preview" =>
                commit_preview(vm: &VmName, target: &CommitTarget) -> CommitPreview, CommitTarget: target;
            POST "/vms/{vm}/revert" =>
                snapshot_revert(vm: &VmName, request: &Revert) -> Loss, Revert: request;
            POST "/vms/{vm}/revert/preview" =>
                revert_preview(vm: &VmName, request: &Revert) -> Loss, Revert: request;
            POST "/vms/{vm}/discard" =>
                snapshot_discard(vm: &VmName, request: &Discard) -> Loss, Discard: request;
            POST "/vms/{vm}/discard/preview" =>
                discard_preview(vm: &VmName, request: &Discard) -> Loss, Discard: request;
            POST "/vms/{vm}/undo" => snapshot_undo(vm: &VmName, request: &Reset) -> Loss, Reset: request;
            POST "/vms/{vm}/undo/preview" =>
                undo_preview(vm: &VmName, request: &Reset) -> Loss, Reset: request;
            GET "/policies" => policy_list() -> Vec<PolicyStatus>;
            POST "/policies" => policy_create(policy: &Policy) -> PolicyStatus as 201, Policy: policy;
            POST "/policies/preview" => policy_preview(policy: &Policy) -> PolicyPreview, Policy: policy;
            GET "/policies/{name}" => policy_show(name: &PolicyName) -> PolicyStatus;
            PUT "/policies/{name}" =>
                policy_set(name: &PolicyName, policy: &Policy) -> PolicyStatus, Policy: policy;
            DELETE "/policies/{name}" => policy_remove(name: &PolicyName) -> PolicyStatus;
            POST "/policies/{name}/apply" =>
                policy_apply(name: &PolicyName, request: &PolicyApply) -> PolicyApplied, PolicyApply: request;
            GET "/alarms?all={all}" => alarm_list(all: bool) -> Vec<Alarm>;
            POST "/alarms/{alarm}/acknowledge" =>
                alarm_acknowledge(alarm: &str, request: &AlarmAcknowledge) -> Alarm, AlarmAcknowledge: request;
            DELETE "/alarms/{alarm}/acknowledge" => alarm_unacknowledge(alarm: &str) -> Alarm;
            GET "/alarms/channels" => alarm_channels() -> Vec<AlarmChannel>;
            POST "/alarms/channels/{name}/test" => alarm_test(name: &str) -> AlarmChannel;
            GET "/alarms/mutes" => alarm_mutes() -> Vec<AlarmMuted>;
            POST "/alarms/mutes" => alarm_mute(request: &AlarmMute) -> AlarmMuted as 201, AlarmMute: request;
            DELETE "/alarms/mutes/{id}" => alarm_unmute(id: u64) -> AlarmMuted;
            GET "/alarms/rules" => alarm_rules() -> Vec<AlarmRuleShown>;
            PUT "/alarms/rules" =>
                alarm_set_threshold(request: &AlarmThreshold) -> Vec<AlarmRuleShown>, AlarmThreshold: request;
            DELETE "/alarms/rules/{rule}" => alarm_reset_rule(rule: &str) -> Vec<AlarmRuleShown>;
            GET "/tokens" => token_list() -> Vec<Token>;
            POST "/tokens" =>
                token_create(request: &TokenCreate) -> TokenCreated as 201, TokenCreate: request;
            DELETE "/tokens/{name}" => token_revoke(name: &TokenName) -> Token;
            GET "/config" => config_export() -> Config;
            POST "/config?replace={replace}" =>
                config_import(replace: bool, config: &Config) -> ConfigImported, Config: config;
            POST "/console" => console_link() -> ConsoleLink;
            GET "/audit?last={last}" => audit(last: usize) -> Vec<AuditEntry>;
            GET "/jobs" => job_list() -> Vec<Job>;
            GET "/jobs/{id}" => job_show(id: u64) -> Job;
            POST "/jobs/{id}/pause" => job_pause(id: u64) -> Job;
            POST "/jobs/{id}/resume" => job_resume(id: u64) -> Job;
            POST "/jobs/{id}/cancel" => job_cancel(id: u64) -> Job;
            PUT "/jobs/{id}/limit" =>
                job_limit(id: u64, limit_bytes_s: Option<u64>) -> Job, JobLimit: &JobLimit { limit_bytes_s };
        }
    };
}
pub(crate) use with_routes;
