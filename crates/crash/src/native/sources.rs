//! Disks over sources: machines that are made over them, and their landing.

use std::rc::Rc;

use engine::Job;
use engine::job::LAND;
use engine::native::change::Op;
use sim::Rng;
use sim::oracle::DiskModel;

use super::disturbance::Disturbance;
use super::harness::Harness;
use super::windows::Windows;

/// Landings that are tried in one boot.
const LANDINGS: u64 = 3;
const DISTURBANCE: Disturbance =
    Disturbance { pause_us_max: 4000, cancelled_every: 3, cut_every: 3, cut_label: "cut in a landing" };

impl Harness {
    /// Makes an image and its source, and returns the operation that makes a disk over it.
    pub(super) async fn plan_over(
        &self,
        rng: &mut Rng,
        node: u64,
        model: &DiskModel,
        windows: &Windows,
    ) -> blk::Result<Op> {
        let name = format!("image of node {node}");
        let bytes = self.model.borrow_mut().images.add(&name, rng, model, windows);
        let device = self.store.add_source(&name, bytes).await?;
        self.model.borrow().images.attach(&self.env, &self.store)?;
        self.store.create_over(node, windows.size_blocks, device)
    }

    /// Copies sources into the store while guests run; some landings are cancelled or cut.
    pub(super) async fn land_some(self: Rc<Harness>, mut rng: Rng) -> Result<(), String> {
        for _ in 0..LANDINGS {
            self.env.sleep_us(rng.below(DISTURBANCE.pause_us_max)).await;
            if self.model.borrow().images.has_fewer(&self.store) {
                self.mark("a source was removed");
            }
            let sources = self.store.sources();
            let Some(source) = rng.pick(&sources).filter(|source| source.is_attached()) else { continue };
            let job = Job::new(self.env.clone(), 1, LAND, source.name.clone());
            let work = self.land(source.device, &job);
            let landed = self.disturbed(&job, &DISTURBANCE, &mut rng, work).await;
            self.faults.survive(&self.env, landed).await?;
        }
        Ok(())
    }

    /// Copies the first source that has not landed, if there is one.
    pub(super) async fn land_first(&self) -> Result<(), String> {
        let sources = self.store.sources();
        let Some(source) = sources.iter().find(|source| source.is_attached()) else { return Ok(()) };
        self.land(source.device, &Job::new(self.env.clone(), 1, LAND, source.name.clone())).await
    }

    async fn land(&self, device: u8, job: &Job) -> Result<(), String> {
        let source = self.store.source(device).map_err(|e| e.to_string())?;
        match self.store.land(device, job).await {
            Ok(()) => {
                self.model.borrow_mut().images.lose(&source.name);
                self.mark("a source has landed");
                Ok(())
            }
            Err(e) if e.kind == blk::ErrorKind::Cancelled => {
                self.mark("a landing was cancelled");
                Ok(())
            }
            Err(e) if e.is_no_space() => Ok(()),
            Err(e) => Err(format!("landing: {e}")),
        }
    }

    /// Waits until the sources of removed machines are removed too.
    pub(super) async fn wait_for_sources(&self) -> Result<(), String> {
        let left = usize::from(self.plan.over_sources);
        for _ in 0..10_000 {
            if self.store.sources().len() == left {
                return Ok(());
            }
            self.env.sleep_us(1000).await;
        }
        let names: Vec<String> = self.store.sources().iter().map(|source| source.name.clone()).collect();
        Err(format!("sources are left: {names:?}, expected {left}"))
    }
}
