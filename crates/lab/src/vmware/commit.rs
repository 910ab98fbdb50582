//! The ways of committing, one disk after another: rounds of helpers, one mirrored pass, or a plain copy of a delta
//! that has another one above it.

use blk::Result;

use super::chain::Chain;
use super::disk::Disk;
use super::spec::{AtLimit, CommitWay, HelperRule, LastRound};
use super::stun::{FileSteps, links_of};
use super::vm::Vm;
use crate::subject::CommitEnd;

/// Interval at which a wait between rounds checks for a close, microseconds.
const WAIT_SLICE_US: u64 = 1_000_000;

impl Vm {
    /// Merges the delta `level` of every disk into the layer below it.
    pub(super) async fn commit_level(&self, level: usize) -> Result<CommitEnd> {
        let is_top = self.disks.iter().all(|disk| disk.chain().deltas.len() == level + 1);
        match self.spec.commit {
            _ if !is_top => self.commit_plainly(level).await,
            CommitWay::Helper(rule) => self.commit_by_helpers(level, rule).await,
            CommitWay::Mirror => self.commit_mirroring(level).await,
        }
    }

    async fn commit_plainly(&self, level: usize) -> Result<CommitEnd> {
        for disk in &self.disks {
            self.copy_frozen(disk, level).await?;
            self.stunned(done(disk), self.drop_merged(disk, level)).await?;
            self.remove_dropped().await?;
        }
        Ok(CommitEnd::Done)
    }

    async fn commit_mirroring(&self, level: usize) -> Result<CommitEnd> {
        self.stunned("the commit begins".into(), async { Ok(()) }).await?;
        for disk in &self.disks {
            let copied = self.copy_mirroring(disk).await;
            if copied.is_ok() {
                self.stunned(done(disk), self.end_mirroring(disk, level)).await?;
            }
            disk.mirrored_to.set(None);
            copied?;
            self.remove_dropped().await?;
        }
        Ok(CommitEnd::Done)
    }

    /// Ends a mirrored pass. Writes that were under way when it ended have reached both sides by now.
    async fn end_mirroring(&self, disk: &Disk, level: usize) -> Result<()> {
        disk.mirrored_to.set(None);
        self.drop_merged(disk, level).await
    }

    /// Commits with helpers. One stun both ends a disk's commit and gives the next disk its helper: the log of a VM
    /// with 12 disks has 13 stuns.
    async fn commit_by_helpers(&self, level: usize, rule: HelperRule) -> Result<CommitEnd> {
        let mut previous: Option<&Disk> = None;
        for disk in &self.disks {
            let cause = previous.map_or("the commit begins".into(), done);
            let step = async {
                if let Some(previous) = previous {
                    self.merge_helper(previous, level).await?;
                }
                self.add_delta(disk).await?;
                self.reopen_others(disk).await
            };
            self.stunned(cause, step).await?;
            self.remove_dropped().await?;
            if let Some(why) = self.rounds(disk, level, rule).await? {
                return Ok(CommitEnd::GaveUp(why));
            }
            previous = Some(disk);
        }
        if let Some(last) = previous {
            self.stunned(done(last), self.merge_helper(last, level)).await?;
            self.remove_dropped().await?;
        }
        Ok(CommitEnd::Done)
    }

    /// Copies until the helper is small enough to be merged while the VM is stopped. Returns the reason if the rule
    /// made it give up.
    async fn rounds(&self, disk: &Disk, level: usize, rule: HelperRule) -> Result<Option<String>> {
        for round in 1.. {
            let begin_ns = self.env.now_ns();
            let bytes = self.copy_frozen(disk, level).await?;
            let took_us = (self.env.now_ns() - begin_ns) / 1000;
            let helper = disk.chain().deltas[level + 1].held_bytes();
            self.state.borrow_mut().progress.helper_bytes.push(helper);
            let is_last = match rule.last {
                LastRound::Bytes(limit) => helper <= limit,
                LastRound::EstimatedUs(limit) => estimated_us(helper, bytes, took_us) <= limit,
            };
            let at_limit = rule.rounds_max == Some(round);
            if is_last || (at_limit && rule.at_limit == AtLimit::MergeStopped) {
                return Ok(None);
            }
            if at_limit {
                let cause = format!("disk {}: gave up after {round} rounds", disk.index);
                self.stunned(cause.clone(), self.drop_merged(disk, level)).await?;
                self.remove_dropped().await?;
                return Ok(Some(format!(
                    "{cause}, with a helper of {helper} bytes: consolidation is needed"
                )));
            }
            self.wait(rule.waits.after(round)).await?;
            let step = async {
                self.add_delta(disk).await?;
                self.drop_merged(disk, level).await
            };
            self.stunned(format!("disk {}: helper {}", disk.index, round + 1), step).await?;
            self.remove_dropped().await?;
        }
        unreachable!("rounds end by returning")
    }

    async fn wait(&self, us: u64) -> Result<()> {
        let end_ns = self.env.now_ns() + us * 1000;
        while self.env.now_ns() < end_ns {
            self.check_stopping()?;
            self.env.sleep_until(end_ns.min(self.env.now_ns() + WAIT_SLICE_US * 1000)).await;
        }
        Ok(())
    }

    /// Merges a helper while the VM is stopped. The delta `level` has been copied; the helper above it is merged the
    /// same way.
    async fn merge_helper(&self, disk: &Disk, level: usize) -> Result<()> {
        self.forget_delta(disk, level);
        self.copy_frozen(disk, level).await?;
        // The helper and the delta below it were both open.
        self.file_steps(FileSteps::reopening(1, 0)).await?;
        self.drop_merged(disk, level).await
    }

    /// Adds a delta that takes the disk's writes from now on. The VM is stopped.
    pub(super) async fn add_delta(&self, disk: &Disk) -> Result<()> {
        let delta = self.create_delta(disk).await?;
        let steps = FileSteps::reopening(links_of(disk), links_of(disk) + 1);
        self.file_steps(steps.with_descriptor()).await?;
        let chain = disk.chain();
        let mut deltas = chain.deltas.clone();
        deltas.push(delta);
        disk.set_chain(Chain { base: chain.base.clone(), deltas });
        Ok(())
    }

    /// Removes the merged delta `level` from the chain. The VM is stopped.
    async fn drop_merged(&self, disk: &Disk, level: usize) -> Result<()> {
        self.file_steps(FileSteps::reopening(links_of(disk), links_of(disk) - 1)).await?;
        self.forget_delta(disk, level);
        self.reopen_others(disk).await
    }

    fn forget_delta(&self, disk: &Disk, level: usize) {
        let chain = disk.chain();
        let mut deltas = chain.deltas.clone();
        let dropped = deltas.remove(level);
        disk.set_chain(Chain { base: chain.base.clone(), deltas });
        self.state.borrow_mut().dropped.push(dropped.name.clone());
    }

    /// Unlinks the files of dropped deltas while the VM runs.
    async fn remove_dropped(&self) -> Result<()> {
        let names = std::mem::take(&mut self.state.borrow_mut().dropped);
        for name in names {
            self.delta_dir.unlink(&name).await?;
            self.state.borrow_mut().delta_files.retain(|file| *file != name);
        }
        Ok(())
    }
}

fn done(disk: &Disk) -> String {
    format!("disk {} consolidated", disk.index)
}

/// Estimates the copy time of `helper` bytes at the rate of a round that moved `bytes` in `took_us`. After a round that
/// moved nothing the estimate is `u64::MAX`, or 0 for an empty helper.
fn estimated_us(helper: u64, bytes: u64, took_us: u64) -> u64 {
    match (helper, bytes) {
        (0, _) => 0,
        (_, 0) => u64::MAX,
        _ => (u128::from(helper) * u128::from(took_us) / u128::from(bytes)) as u64,
    }
}
