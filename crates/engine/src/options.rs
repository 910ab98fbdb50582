//! What a caller may set, and the defects a test may plant.

/// What a guest's write does when the datastore is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpacePolicy {
    /// It waits until space returns; reads go on.
    #[default]
    Wait,
    /// It fails with ENOSPC.
    Error,
}

/// How the mover of a commit works.
#[derive(Debug, Clone, Copy)]
pub struct FoldOptions {
    /// Copied under one range lock: the longest a guest write can wait for the mover. 64 KiB.
    pub piece_bytes: u64,
    /// Regions released by one pair of flushes.
    pub batch_regions: usize,
    /// Pieces under way at once, when the guest is idle.
    pub depth: usize,
    /// While a guest with few I/Os is active the mover rests this many times the time its piece took, or less.
    pub yield_factor: u64,
    /// A guest that was heard of within this time may ask for something at any moment, and would wait for as many
    /// pieces as are under way: until then it counts as active.
    pub near_us: u64,
}

impl Default for FoldOptions {
    fn default() -> Self {
        Self { piece_bytes: 64 << 10, batch_regions: 16, depth: 16, yield_factor: 2, near_us: 200_000 }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Resolved maps, of all disks and views of a core together. 100 GiB of 4 KiB-random runs at 8 KiB a region would be
    /// 400 MiB; beyond the cap the coldest regions are built again when touched.
    pub map_cap_bytes: usize,
    /// Tables of all layers of a core that wait to be written: 24 MiB are 1536 of them. Beyond, first writes wait for
    /// flushes.
    pub unwritten_cap_bytes: u64,
    pub space_policy: SpacePolicy,
    /// How often a write that waits for space tries again.
    pub space_retry_us: u64,
    /// Set aside per VM so that a commit can move one region on a full datastore: a region of 2 MiB, its table and the
    /// growth of a target that is a delta, twice.
    pub reserve_bytes: u64,
    pub fold: FoldOptions,
    pub defects: Defects,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            map_cap_bytes: 64 << 20,
            unwritten_cap_bytes: 24 << 20,
            space_policy: SpacePolicy::default(),
            space_retry_us: 250_000,
            reserve_bytes: 5 << 20,
            fold: FoldOptions::default(),
            defects: Defects::default(),
        }
    }
}

/// A wrong order of durable steps, planted at run time to prove that a checker finds it. Never set in production.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Defect {
    /// Tables reach the device before the data they point to.
    TablesBeforeData,
    /// Entries published during the data flush are written with it.
    StagesAfterFlush,
    /// A guest flush ends after the data flush.
    NoTableFlush,
    /// A guest flush after a take leaves out the parent that is not sealed yet.
    FlushTopOnly,
    /// A take reports its snapshot sealed without waiting for the writes under way in the parent.
    SealWithoutDrain,
    /// A commit starts moving while first writes admitted before it are still under way.
    FoldWithoutDrain,
    /// A region is released before the parent's copy is durable.
    ReleaseBeforeParentFlush,
    /// A region is released while what shadows it, and was the reason not to copy it, is not durable.
    ReleaseBeforeShadowFlush,
    /// While a region is being moved writes go to the parent only.
    MirrorParentOnly,
    /// While a region is being moved writes go to the delta only.
    MirrorDeltaOnly,
    /// The mover copies without holding the piece against guest writes.
    CopyWithoutLock,
    /// Two writers take space for one grain at the same time.
    PlaceWithoutGrains,
    /// What a grain was filled up with counts as visible, whatever a higher layer holds there.
    ShowWholeGrain,
    /// Freed space is punched before the pointers to it are durably gone.
    PunchBeforeRelease,
    /// A fold goes by its layer's name alone, which may belong to a new layer.
    FoldByNameOnly,
    /// A look at the tree fails where the end of a commit removes a layer meanwhile.
    ReadUnsteady,
    /// A new chain is swapped in before the home says so.
    SwapBeforePublish,
    /// A delta is folded into a layer that another branch reads.
    FoldIntoShared,
    /// The mover leaves out what the running top shadows though another branch reads it.
    SkipAcrossBranches,
    /// What a clone reads is folded and removed all the same.
    ForgetClones,
    /// The content generation is raised by a change of its own, after the one that replaces the content.
    RaiseApart,
    /// What the bin keeps is not flushed when it is put there.
    BinUnflushed,
    /// A commit folds into layers that binned states rest on.
    FoldUnderBin,
    /// First writes are placed however many tables wait to be written.
    UnboundedTables,
    /// A write in place that finds no space counts as a failure of the device: it is not tried again.
    DoubtFullDevice,
    /// A shortage of descriptors counts as a failure of the device: what it met is in doubt.
    DoubtShortage,
    /// Native: a redirect is overwritten in place before a replay is sure not to doubt its data.
    EarlyFlushedLsn,
    /// Native: freed space is used again at once.
    EarlyReuse,
    /// Native: what was born in the predecessor's own generation counts as the dropped state's.
    WrongBirth,
    /// Native: what a dropped state's successor still shows is freed.
    IgnoreSuccessor,
    /// Native: a checkpoint takes up redirects whose records are not durable.
    CheckpointBeforeJournal,
    /// Native: the superblock is written before the pages it speaks of are durable.
    SuperblockBeforePages,
    /// Native: records without their data are left out of a recovery, and of that one only.
    ForgetVoids,
    /// Native: what a checkpoint freed is used again before any batch of the journal names that checkpoint.
    ReuseBeforeNamed,
    /// A flush that is tried again after one that failed counts as a success.
    FlushRetried,
    /// What a process that was killed has not flushed is served as it is found.
    OpenWithoutFlush,
    /// What is kept in the host's memory is not written there: a killed process takes it along.
    ForgetMemory,
    /// Lease: its holder starts I/O however old its last heartbeat is.
    HolderWithoutFence,
    /// Lease: a heartbeat's age counts from when its write was seen to end.
    HeartbeatCountedFromItsEnd,
    /// Lease: one whose heartbeats stand still for a moment is claimed.
    ClaimWithoutWait,
    /// Lease: a claim counts as soon as it is written.
    ClaimWithoutReadback,
    /// Lease: a claim counts however long it took from the read that allowed it.
    LateClaim,
}

/// A set of planted defects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defects(u64);

impl Defects {
    pub const fn only(defect: Defect) -> Defects {
        Defects(1 << defect as u8)
    }

    pub fn has(self, defect: Defect) -> bool {
        self.0 & (1 << defect as u8) != 0
    }
}
