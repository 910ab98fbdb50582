//! Somebody's measurements: recognised, read, merged with themselves, divided into phases, shown. The name is one of fio's, whose logs say what they hold by it alone.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let mut input = file;
    if let Ok(imported) = lab::import::import("run_clat.1.log", &mut input, &Default::default()) {
        let twice = [imported.records.clone(), imported.records].concat();
        let mut records = lab::import::merge(twice).records;
        lab::import::find_phases(&mut records);
        lab::report::html::page(&records);
    }
});
