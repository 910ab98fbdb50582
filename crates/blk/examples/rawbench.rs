//! What our executor and `File` cost over a plain ring: the same random 4 KiB 70/30 load on the same file, in
//! alternating slices. Arguments: FILE SECONDS DEPTH. A missing file is made, 1 GiB and fully written.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::reactor::{OpenMode, Reactor};
use blk::uring::{RandomLoad, Rng, UringReactor, run_raw};
use blk::{Buf, Env, Executor, File, Result};

const ROUNDS: usize = 5;
const NEW_FILE_BYTES: u64 = 1 << 30;
const BLOCK: u64 = 4096;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, seconds, depth] = &args[..] else {
        eprintln!("usage: rawbench FILE SECONDS DEPTH");
        std::process::exit(2);
    };
    let (Ok(seconds), Ok(depth)) = (seconds.parse::<f64>(), depth.parse::<u32>()) else {
        eprintln!("SECONDS and DEPTH are numbers");
        std::process::exit(2);
    };
    if let Err(e) = compare(file, seconds, depth.clamp(1, 4096)) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}

fn compare(path: &str, seconds: f64, depth: u32) -> Result<()> {
    let path = std::path::Path::new(path);
    let folder = path.parent().and_then(|p| p.to_str()).filter(|p| !p.is_empty()).unwrap_or(".");
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let (raw, ours) = (Samples::default(), Samples::default());
    on_core(folder, name, |_, file| async move { fill(&file).await })?;
    for round in 0..ROUNDS as u64 {
        let load = RandomLoad { depth, read_percent: 70, duration_ns: (seconds * 1e9) as u64, seed: round };
        raw.measure(seconds, || run_raw(folder, name, load))?;
        ours.measure(seconds, || on_core(folder, name, move |env, file| run_ours(env, file, load)))?;
    }
    let (raw, ours) = (raw.medians(), ours.medians());
    println!("{:12} {:>10} {:>12}", "", "IOPS", "CPU us/IO");
    println!("{:12} {:>10.0} {:>12.2}", "raw loop", raw.0, raw.1);
    println!("{:12} {:>10.0} {:>12.2}", "blk", ours.0, ours.1);
    println!("{:12} {:>10.3} {:>+12.2}", "blk of raw", ours.0 / raw.0, ours.1 - raw.1);
    Ok(())
}

/// IOPS and CPU per transfer, one of each for a slice.
#[derive(Default)]
struct Samples(RefCell<Vec<(f64, f64)>>);

impl Samples {
    fn measure(&self, seconds: f64, run: impl FnOnce() -> Result<u64>) -> Result<()> {
        let before = cpu_us();
        let transfers = run()? as f64;
        self.0.borrow_mut().push((transfers / seconds, (cpu_us() - before) / transfers));
        Ok(())
    }

    fn medians(&self) -> (f64, f64) {
        let median = |mut v: Vec<f64>| {
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        };
        let samples = self.0.borrow();
        (median(samples.iter().map(|s| s.0).collect()), median(samples.iter().map(|s| s.1).collect()))
    }
}

fn cpu_us() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 * 1e6 + t.tv_nsec as f64 / 1e3
}

fn on_core<T: 'static, F: Future<Output = Result<T>> + 'static>(
    folder: &str,
    name: &str,
    work: impl FnOnce(Env, File) -> F + 'static,
) -> Result<T> {
    let reactor = Rc::new(UringReactor::new()?);
    let executor = Executor::new(reactor.clone());
    let env = executor.env();
    let (dir, name) = (env.open_root(folder)?, name.to_string());
    let run = executor.run(async move {
        let file = match dir.open(&name, OpenMode::Write).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => dir.create_new(&name).await?,
            other => other?,
        };
        work(env, file).await
    });
    if std::env::var_os("RAWBENCH_COUNTERS").is_some() {
        eprintln!("{:?}", reactor.counters());
    }
    reactor.turn();
    run.expect("the reactor always waits")
}

async fn fill(file: &File) -> Result<()> {
    if file.size().await? >= BLOCK {
        return Ok(());
    }
    let piece = Buf::zeroed(1 << 20).freeze();
    for at in (0..NEW_FILE_BYTES).step_by(piece.len()) {
        file.write(at, piece.clone()).await?;
    }
    file.flush().await
}

/// One task for each unit of depth, each a loop of single transfers.
async fn run_ours(env: Env, file: File, load: RandomLoad) -> Result<u64> {
    let blocks = file.size().await? / BLOCK;
    let rng = Rc::new(RefCell::new(Rng(load.seed)));
    let done = Rc::new(Cell::new(0));
    let end = env.now_ns() + load.duration_ns;
    let tasks: Vec<_> = (0..load.depth)
        .map(|_| {
            env.spawn(one_lane(env.clone(), file.clone(), load, (blocks, end), rng.clone(), done.clone()))
        })
        .collect();
    for task in tasks {
        task.join().await?;
    }
    Ok(done.get())
}

async fn one_lane(
    env: Env,
    file: File,
    load: RandomLoad,
    (blocks, end): (u64, u64),
    rng: Rc<RefCell<Rng>>,
    done: Rc<Cell<u64>>,
) -> Result<()> {
    let mut buf = Buf::zeroed(BLOCK as usize);
    while env.now_ns() < end {
        let (offset, read) = load.next(&mut rng.borrow_mut(), blocks);
        if read {
            let (back, result) = file.read(offset, buf).await;
            result?;
            buf = back;
        } else {
            let data = buf.freeze();
            file.write(offset, data.clone()).await?;
            buf = data.into_buf().unwrap_or_else(|| Buf::zeroed(BLOCK as usize));
        }
        done.set(done.get() + 1);
    }
    Ok(())
}
