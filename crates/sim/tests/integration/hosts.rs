//! Machines that share a world: what a pause of one holds back, and what continues.

use std::cell::Cell;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Buf, ErrorKind, Fence, File};
use sim::{Host, Options, Pause, SimWorld, View};

const PAUSE_NS: u64 = 1_000_000_000;

fn page(byte: u8) -> Buf {
    let mut page = Buf::alloc(4096);
    page.fill(byte);
    page
}

async fn open(host: &Host) -> File {
    host.env.open_root("/").unwrap().open("lun", OpenMode::Write).await.unwrap()
}

fn world() -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    world.write_file("lun", &vec![0; 1 << 20]);
    world
}

fn first_byte(world: &SimWorld) -> u8 {
    world.read_at("lun", 0, 1, View::Current).unwrap()[0]
}

/// Opens the file on the first machine behind a fence, pauses the machine at its next submission, and starts a write.
async fn write_paused(host: &Host, fence: &Rc<Fence>) -> Rc<Cell<Option<blk::Result<()>>>> {
    let file = open(host).await;
    file.set_fence(fence.clone());
    host.pause(Pause::AtSubmission(1));
    let done = Rc::new(Cell::new(None));
    let out = done.clone();
    drop(host.env.spawn(async move { out.set(Some(file.write(0, page(7)).await)) }));
    done
}

#[test]
fn operations_queued_by_a_paused_machine_are_fenced_when_it_resumes() {
    let world = world();
    let outside = world.clone();
    let answered = world.run_hosts(1, |env, hosts| async move {
        let fence = Fence::failing(&hosts[0].env);
        fence.open_until(env.boot_ns() + PAUSE_NS / 2);
        let done = write_paused(&hosts[0], &fence).await;
        env.sleep_us(PAUSE_NS / 1000).await;
        assert!(done.take().is_none() && hosts[0].is_paused());
        hosts[0].resume();
        env.sleep_us(PAUSE_NS / 1000).await;
        assert_eq!(first_byte(&outside), 0, "it was in the queue only, and the fence has closed");
        done.take()
    });
    assert_eq!(answered.unwrap().expect("answered").unwrap_err().kind, ErrorKind::LeaseLost);
}

#[test]
fn a_write_at_a_waiting_fence_continues_when_it_opens_and_fails_when_it_is_lost() {
    for lost in [false, true] {
        let world = world();
        let answered = world.run_hosts(1, |env, hosts| async move {
            let fence = Fence::waiting(&hosts[0].env);
            let done = write_paused(&hosts[0], &fence).await;
            hosts[0].resume();
            env.sleep_us(1000).await;
            assert!(done.take().is_none());
            match lost {
                true => fence.lose(blk::Error::refused("lun", "another machine has it")),
                false => fence.open_until(u64::MAX),
            }
            env.sleep_us(PAUSE_NS / 1000).await;
            done.take()
        });
        let answered = answered.unwrap().expect("answered");
        assert_eq!(answered.is_err(), lost);
        assert_eq!(first_byte(&world), if lost { 0 } else { 7 });
        if let Err(e) = answered {
            assert_eq!(e.kind, ErrorKind::LeaseLost);
            assert!(e.cause.contains("another machine has it"), "{e}");
        }
    }
}

#[test]
fn a_flush_that_a_fence_turns_back_has_failed_nothing_and_the_next_one_covers_it() {
    for seed in 0..20 {
        let world = SimWorld::new(seed, Options::default());
        world.write_file("lun", &vec![0; 1 << 20]);
        let done = world.run_hosts(1, |_, hosts| async move {
            let file = open(&hosts[0]).await;
            let fence = Fence::failing(&hosts[0].env);
            file.set_fence(fence.clone());
            fence.open_until(u64::MAX);
            file.write(0, page(7)).await.unwrap();
            fence.open_until(0);
            assert_eq!(file.flush().await.unwrap_err().kind, ErrorKind::LeaseLost);
            fence.open_until(u64::MAX);
            file.flush().await.unwrap();
        });
        done.expect("no cut");
        world.power_cut();
        assert_eq!(first_byte(&world), 7, "seed {seed}");
    }
}

#[test]
fn the_monotonic_clock_of_a_paused_machine_stands_still_and_the_other_does_not() {
    let world = world();
    world.run_hosts(2, |env, hosts| async move {
        hosts[0].pause(Pause::Now);
        env.sleep_us(PAUSE_NS / 1000).await;
        hosts[0].resume();
        let (paused, other) = (&hosts[0].env, &hosts[1].env);
        assert_eq!(other.now_ns() - paused.now_ns(), PAUSE_NS);
        assert_eq!(other.boot_ns(), paused.boot_ns());
        let began_ns = paused.now_ns();
        paused.sleep_us(5).await;
        assert!((5_000..10_000).contains(&(paused.now_ns() - began_ns)));
    });
}
