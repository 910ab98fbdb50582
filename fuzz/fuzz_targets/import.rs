//! Somebody's measurements: recognised, read, shown. The name is one of fio's, whose logs say what they hold by it alone.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let mut input = file;
    if let Ok(imported) = lab::import::import("run_clat.1.log", &mut input, &Default::default()) {
        lab::report::html::page(&imported.records);
    }
});
