//! The reactors' conformance script in virtual time. The real reactor runs the same script.

#[path = "../../../blk/tests/integration/conformance/mod.rs"]
mod contract;

use sim::{Device, Options, SimWorld};

fn run_script(seed: u64, options: Options) {
    let world = SimWorld::new(seed, options);
    let done = world.run(|env| async move {
        let dir = env.open_root("/datastore").unwrap();
        contract::script(&env, &dir).await;
    });
    assert!(done.is_some(), "seed {seed}");
    assert_eq!(world.used_bytes(), 0, "seed {seed}: every file is gone, and so is its space");
}

#[test]
fn conformance_in_virtual_time() {
    for seed in 0..50 {
        for logical_block in [512, 4096] {
            run_script(seed, Options { logical_block, memory_align: logical_block, ..Options::default() });
        }
    }
}

#[test]
fn conformance_on_a_device_that_serves_one_at_a_time() {
    let device = Device { lanes: 1, ..Device::steady(50_000) };
    run_script(1, Options { device, ..Options::default() });
}
