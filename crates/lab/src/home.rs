//! A VM's home on the simulated medium.

use std::rc::Rc;

use blk::manifest::Manifest;
use blk::{Env, Result};
use vmdk::home::{Folders, Home, NewVm};
use vmdk::vmfssparse::Growth;

const FOLDER: &str = "web";

fn growth(step_bytes: u64) -> Growth {
    Growth { step_bytes, chunk_bytes: (step_bytes / 4).max(4096) }
}

pub async fn create(env: &Env, disk_bytes: &[u64]) -> Result<()> {
    let root = env.open_root("/")?;
    let dir = root.open_dir(FOLDER, true).await?;
    root.sync().await?;
    Home::create(dir, Folders::default(), growth(1 << 20), NewVm::new("web", disk_bytes)).await.map(drop)
}

pub async fn open(env: &Env, growth_bytes: u64) -> Result<Rc<dyn Manifest>> {
    let dir = env.open_root("/")?.open_dir(FOLDER, false).await?;
    Ok(Rc::new(Home::new(dir, Folders::default(), growth(growth_bytes))))
}

/// After everything was committed and closed only the base disks and the two texts may be left.
pub async fn check_clean(env: &Env, disks: usize) -> Result<(), String> {
    let dir = async { env.open_root("/")?.open_dir(FOLDER, false).await };
    let dir = dir.await.map_err(|e| e.to_string())?;
    let names = dir.list().await.map_err(|e| e.to_string())?;
    let mut expected = vec![".unstun/".to_string(), "web.vmsd".into(), "web.vmx".into()];
    for index in 0..disks {
        let stem = if index == 0 { "web".to_string() } else { format!("web_{index}") };
        expected.extend([format!("{stem}.vmdk"), format!("{stem}-flat.vmdk")]);
    }
    let strangers: Vec<_> = names.iter().filter(|n| !expected.contains(n)).cloned().collect();
    if strangers.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind in the home: {}", strangers.join(", ")))
    }
}
