//! Settings of the engine, and the defects that a test may plant.

/// What a guest's write does when the datastore is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpacePolicy {
    /// The write waits until space returns; reads go on.
    #[default]
    Wait,
    /// The write fails with ENOSPC.
    Error,
}

/// Settings of the mover of a commit.
#[derive(Debug, Clone, Copy)]
pub struct FoldOptions {
    /// Bytes copied under one range lock: the longest that a guest write can wait for the mover. Default: 64 KiB.
    pub piece_bytes: u64,
    /// Number of regions released by one pair of flushes.
    pub batch_regions: usize,
    /// Number of pieces under way at once while the guest is idle.
    pub depth: usize,
    /// While a guest with few I/Os is active, the mover pauses after each piece for at most this many times the piece's
    /// duration.
    pub yield_factor: u64,
    /// A guest that completed a request within this time counts as active: it may send the next one at any moment, and
    /// that one would wait for as many pieces as are under way.
    pub near_us: u64,
}

impl Default for FoldOptions {
    fn default() -> Self {
        Self { piece_bytes: 64 << 10, batch_regions: 16, depth: 16, yield_factor: 2, near_us: 200_000 }
    }
}

/// Settings of an open VM and its disks.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Cap of the resolved maps of all disks and views of a core together. 100 GiB of 4 KiB-random runs at 8 KiB a
    /// region would be 400 MiB; beyond the cap the coldest regions are dropped, and built again when touched.
    pub map_cap_bytes: usize,
    /// Cap of the unwritten tables of all layers of a core: 24 MiB are 1536 tables. Beyond it first writes wait for
    /// flushes.
    pub unwritten_cap_bytes: u64,
    /// What a guest's write does that finds no space.
    pub space_policy: SpacePolicy,
    /// Interval between two tries of a write that waits for space.
    pub space_retry_us: u64,
    /// Space set aside per VM so that a commit can move one region on a full datastore: twice the sum of a region of 2
    /// MiB, its table and the growth of a target that is a delta. A VM with SEsparse deltas, whose regions have 16 MiB,
    /// sets 28 MiB more aside.
    pub reserve_bytes: u64,
    /// How commits share the device with guests.
    pub fold: FoldOptions,
    /// Planted to prove that tests find them; none in production.
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

/// A wrong order of durable steps, planted at run time to prove that a checker finds it. Production code never sets
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Defect {
    /// Tables reach the device before the data they point to.
    TablesBeforeData,
    /// Table entries published during the data flush are written with it.
    StagesAfterFlush,
    /// A guest flush ends after the data flush, before the tables are written.
    NoTableFlush,
    /// A guest flush after a take leaves out the parent that is not sealed yet.
    FlushTopOnly,
    /// A take reports its snapshot sealed without waiting for the writes under way in the parent.
    SealWithoutDrain,
    /// A commit starts moving while first writes admitted before it are still under way.
    FoldWithoutDrain,
    /// A region is released before the parent's copy is durable.
    ReleaseBeforeParentFlush,
    /// A region is released before the data that shadows it, and that was the reason not to copy it, is durable.
    ReleaseBeforeShadowFlush,
    /// While a region is being moved writes go to the parent only.
    MirrorParentOnly,
    /// While a region is being moved writes go to the delta only.
    MirrorDeltaOnly,
    /// The mover copies without holding the piece against guest writes.
    CopyWithoutLock,
    /// Two writers take space for one grain at the same time.
    PlaceWithoutGrains,
    /// The data that fills up a grain counts as visible even where a higher layer holds that range.
    ShowWholeGrain,
    /// Freed space is punched before the removal of the pointers to it is durable.
    PunchBeforeRelease,
    /// A fold identifies its layer by name alone; the name may belong to a new layer.
    FoldByNameOnly,
    /// A query of the tree fails when the end of a commit removes a layer meanwhile.
    ReadUnsteady,
    /// A new chain is swapped in before the home records it.
    SwapBeforePublish,
    /// A delta is folded into a layer that another branch reads.
    FoldIntoShared,
    /// The mover skips data that the running top shadows although another branch reads it.
    SkipAcrossBranches,
    /// Layers that a clone reads are folded and removed anyway.
    ForgetClones,
    /// The content generation is raised by a change of its own, after the change that replaces the content.
    RaiseApart,
    /// Data is not flushed before it goes to the bin.
    BinUnflushed,
    /// A commit folds into layers that binned states depend on.
    FoldUnderBin,
    /// A reader that finds the files of a layer which is being created opens them, beside the creator.
    OpenDuringCreation,
    /// First writes are placed regardless of how many tables wait to be written.
    UnboundedTables,
    /// A write in place that finds no space counts as a failure of the device: it is not tried again.
    DoubtFullDevice,
    /// A shortage of descriptors counts as a failure of the device, so the state of the affected object is in doubt.
    DoubtShortage,
    /// Native: a redirect is overwritten in place before it is certain that no replay will doubt its data.
    EarlyFlushedLsn,
    /// Native: freed space is used again at once.
    EarlyReuse,
    /// Native: a block born in the predecessor's own generation counts as the dropped state's.
    WrongBirth,
    /// Native: blocks that a dropped state's successor still shows are freed.
    IgnoreSuccessor,
    /// Native: backing blocks that a dropped state's successor still needs are freed.
    ForgetBackings,
    /// Native: a replay counts the sectors of records whose data is missing as present.
    CountMissingSectors,
    /// Native: a rebuild without a catalogue takes map pages for those of states that are not in use any more.
    RebuildFromStalePages,
    /// Native: a rebuild shows lost blocks as zeros.
    RebuildLostAsZeros,
    /// Native: a block that a take has shared meanwhile gets further sectors.
    ExtendShared,
    /// Native: a checkpoint includes redirects whose records are not durable.
    CheckpointBeforeJournal,
    /// Native: the superblock is written before the pages it refers to are durable.
    SuperblockBeforePages,
    /// Native: only one recovery leaves out records without their data, because it does not record that they are aborted.
    ForgetAborts,
    /// Native: space that a checkpoint freed is used again before any batch of the journal names that checkpoint.
    ReuseBeforeNamed,
    /// Native: what landed of a source is recorded before the data is durable.
    LandedBeforeFlush,
    /// Native: an image counts as not needed before it is durable that all of it has landed.
    DetachBeforeFlush,
    /// Native: a defragmentation moves blocks although guests have overwritten them during the copy.
    MoveUnwatched,
    /// Native: writers are not delayed, so they wait for whole checkpoints.
    UnpacedWriters,
    /// Native: grants of another core stay when the map changes.
    KeepGrants,
    /// Native: I/O of another core under a withdrawn grant is not waited for.
    ForgetRemoteIo,
    /// Native: another core goes on overwriting blocks that a take has shared.
    WriteSealedInPlace,
    /// A flush that is tried again after one that failed counts as a success.
    FlushRetried,
    /// Data that a killed process had not flushed is served without a flush.
    OpenWithoutFlush,
    /// The log in the host's memory is not written, so it is lost with a killed process.
    ForgetMemory,
    /// Lease: the holder starts I/O regardless of the age of its last heartbeat.
    HolderWithoutFence,
    /// Lease: a heartbeat's age is counted from the observed end of its write.
    HeartbeatCountedFromItsEnd,
    /// Lease: a lease whose heartbeats pause for a moment is claimed.
    ClaimWithoutWait,
    /// Lease: a claim counts as soon as it is written.
    ClaimWithoutReadback,
    /// Lease: a claim counts regardless of the time since the read that allowed it.
    LateClaim,
    /// Lease: a reservation of the device stays with its former owner.
    ReservationLeft,
}

/// A set of planted defects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defects(u64);

impl Defects {
    /// Returns the set with one defect.
    pub const fn only(defect: Defect) -> Defects {
        Defects(1 << defect as u8)
    }

    /// Returns whether the set has `defect`.
    pub fn has(self, defect: Defect) -> bool {
        self.0 & (1 << defect as u8) != 0
    }
}
