//! Ten million operations through executor, device and file: `time` it for the cost of one.
//!
//! `cargo run -p sim --release --example trivial_loop -- [tasks] [applied|absent]`, the last on modelled flash.

use blk::Buf;
use sim::{ContentMode, Flash, Model, Options, SimWorld, Storage};

const OPS: u64 = 10_000_000;

fn options(content: Option<&str>) -> Options {
    let content = match content {
        Some("applied") => ContentMode::Applied,
        Some("absent") => ContentMode::Absent,
        _ => return Options::default(),
    };
    let flash = Flash {
        read_ns: 57_000,
        write_ns: 12_000,
        flush_ns: 0,
        read_per_kib_ns: 1_280,
        write_per_kib_ns: 1_280,
        lanes: 16,
        write_lanes: 0,
        gap_ns: 2_000,
        gap_per_kib_ns: 305,
    };
    Options { storage: Some(Storage::of(Model::Flash(flash))), content, ..Options::default() }
}

fn main() {
    let tasks: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    let world = SimWorld::new(1, options(std::env::args().nth(2).as_deref()));
    world.write_file("disk", &vec![1; 16 << 20]);
    world.run(move |env| async move {
        let file = env.open_root("/").unwrap().open("disk", blk::reactor::OpenMode::Write).await.unwrap();
        let each = OPS / tasks;
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let file = file.clone();
                env.spawn(async move {
                    let mut buf = Buf::zeroed(4096);
                    for n in 0..each {
                        let offset = (n * 7919 + task * 31) % 4096 * 4096;
                        match n % 32 {
                            31 => file.flush().await.unwrap(),
                            n if n % 2 == 0 => {
                                let result;
                                (buf, result) = file.read(offset, buf).await;
                                result.unwrap();
                            }
                            _ => {
                                let data = buf.freeze();
                                file.write(offset, data.clone()).await.unwrap();
                                buf = data.into_buf().unwrap_or_else(|| Buf::zeroed(4096));
                            }
                        }
                    }
                })
            })
            .collect();
        for task in running {
            task.join().await;
        }
    });
    println!(
        "{} events, {} virtual ms, hash {:016x}",
        world.events(),
        world.now_ns() / 1_000_000,
        world.event_hash()
    );
}
