//! Exports of a VM's disks, as other programs read them: raw, qcow2, VMDK and OVA.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::daemon::{Datastore, copy};
use crate::guest::seed;
use crate::programs::tool;
use crate::tools::Twin;

/// Not a multiple of a grain, nor of the pieces in which disks are read.
const SIZE: u64 = (70 << 20) + 4096;

/// Creates a VM with two disks and a snapshot `a`, and returns the twins of the disks with their content at `a`.
fn vm(datastore: &Datastore, store: &str) -> [Twin; 2] {
    datastore.json(&format!("vm create web --disk {SIZE} --disk 40M --store {store}"));
    let twins = [(0, SIZE), (1, 40 << 20)].map(|(disk, bytes)| {
        let mut twin = Twin::called(&format!("disk{disk}"), datastore, bytes, seed() + disk);
        twin.scribble(&datastore.uri(&format!("web/disk{disk}")), 12);
        twin
    });
    datastore.json("snapshot take web a");
    twins
}

fn names(exported: &Value) -> Vec<&str> {
    let files = exported["files"].as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap().rsplit('/').next().unwrap()).collect()
}

#[test]
fn every_format_is_read_by_qemu_and_has_the_state() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let twins = vm(&datastore, "native");
    let later = datastore.beside("later.raw");
    copy(&twins[0].path, &later);
    tool("qemu-io", &["-f", "raw", "-c", "write -P 99 1M 3M", later.to_str().unwrap()]);
    tool("qemu-io", &["-f", "raw", "-c", "write -P 99 1M 3M", &datastore.uri("web/disk0")]);
    for (format, suffix, qemu) in [
        ("raw", "raw", "raw"),
        ("qcow2", "qcow2", "qcow2"),
        ("vmdk-flat", "vmdk", "vmdk"),
        ("vmdk-stream", "vmdk", "vmdk"),
    ] {
        let folder = datastore.beside(format);
        fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(format!("{name}.{suffix}"));
        let exported = datastore.json(&format!("export web@a {} --format {format}", path("web").display()));
        assert_eq!(
            names(&exported),
            [format!("web-disk0.{suffix}"), format!("web-disk1.{suffix}")],
            "{exported}"
        );
        for (disk, twin) in twins.iter().enumerate() {
            let file = path(&format!("web-disk{disk}"));
            twin.assert_same_as(qemu, file.to_str().unwrap());
            if matches!(format, "qcow2" | "vmdk-stream") {
                tool("qemu-img", &["check", "-f", qemu, file.to_str().unwrap()]);
            }
            let hash = &exported["files"][disk]["sha256"];
            if format == "vmdk-stream" {
                let said = tool("sha256sum", &[file.to_str().unwrap()]);
                assert!(said.starts_with(hash.as_str().unwrap()), "{hash}: {said}");
            }
        }
        // The running disk: a snapshot for the time of the export.
        let exported =
            datastore.json(&format!("export web/disk0 {} --format {format}", path("now").display()));
        assert_eq!(
            (&exported["snapshot"], names(&exported)),
            (&Value::Null, vec![&*format!("now.{suffix}")])
        );
        tool(
            "qemu-img",
            &["compare", "-f", "raw", "-F", qemu, later.to_str().unwrap(), path("now").to_str().unwrap()],
        );
        let (code, said) =
            datastore.fails(&format!("export web@a {} --format {format}", path("web").display()));
        assert!(code == 3 && said.contains("exists already"), "{code}: {said}");
    }
    let tree = datastore.json("snapshot tree web");
    assert_eq!(tree["snapshots"].as_array().unwrap().len(), 1, "snapshots of exports are removed: {tree}");
    daemon.stop();
}

#[test]
fn an_ova_has_its_disks_hashes_and_description() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let twins = vm(&datastore, "redo");
    let ova = datastore.beside("web.ova");
    datastore.json(&format!("export web@a {} --cpus 3 --memory 512M", ova.display()));
    let folder = datastore.beside("out");
    fs::create_dir(&folder).unwrap();
    let (archive, target) = (ova.to_str().unwrap(), folder.to_str().unwrap());
    let members = tool("tar", &["-tf", archive]);
    assert_eq!(
        members.lines().collect::<Vec<_>>(),
        ["web.ovf", "web.mf", "web-disk0.vmdk", "web-disk1.vmdk"]
    );
    tool("tar", &["-xf", archive, "-C", target]);
    for (disk, twin) in twins.iter().enumerate() {
        twin.assert_same_as("vmdk", folder.join(format!("web-disk{disk}.vmdk")).to_str().unwrap());
    }
    for line in fs::read_to_string(folder.join("web.mf")).unwrap().lines() {
        let (name, hash) = line.strip_prefix("SHA256(").unwrap().split_once(")= ").unwrap();
        let said = tool("sha256sum", &[folder.join(name).to_str().unwrap()]);
        assert!(said.starts_with(hash), "{line}: {said}");
    }
    // A reader of XML of another project's says what the description has.
    let script = "import sys, xml.etree.ElementTree as t\n\
                  r = t.parse(sys.argv[1]).getroot()\n\
                  o = '{http://schemas.dmtf.org/ovf/envelope/1}'\n\
                  a = '{http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData}'\n\
                  print(*[f.get(o + 'href') + '=' + f.get(o + 'size') for f in r.iter(o + 'File')])\n\
                  print(*[d.get(o + 'capacity') for d in r.iter(o + 'Disk')])\n\
                  print(*[i.findtext(a + 'ResourceType') for i in r.iter(o + 'Item')])\n\
                  print(*[i.findtext(a + 'VirtualQuantity') for i in r.iter(o + 'Item')][:2])\n";
    let said = tool("python3", &["-c", script, folder.join("web.ovf").to_str().unwrap()]);
    let size = |disk: usize| fs::metadata(folder.join(format!("web-disk{disk}.vmdk"))).unwrap().len();
    let expected = format!(
        "web-disk0.vmdk={} web-disk1.vmdk={}\n{SIZE} {}\n3 4 6 17 17\n3 512\n",
        size(0),
        size(1),
        40 << 20
    );
    assert_eq!(said, expected);
    // Back again, in place: the archive, and a disk of it.
    datastore.json(&format!("vm create back --disk from={archive},from={archive},part=1,copy=no"));
    for (disk, twin) in twins.iter().enumerate() {
        twin.assert_same_as("raw", &datastore.uri(&format!("back/disk{disk}")));
    }
    let single = folder.join("web-disk0.vmdk");
    let made = datastore.json(&format!("vm create single --disk from={}", single.display()));
    assert_eq!(made["disks"][0]["source"]["format"], "vmdk", "{made}");
    twins[0].assert_same_as("raw", &datastore.uri("single/disk0"));
    let (code, said) = datastore.fails(&format!("vm create more --disk from={archive},part=2"));
    assert!(code == 4 && said.contains("has 2 with content"), "{code}: {said}");
    let half = datastore.beside("half.ova");
    let whole = fs::read(&ova).unwrap();
    fs::write(&half, &whole[..whole.len() / 2]).unwrap();
    let (code, said) = datastore.fails(&format!("vm create more --disk from={}", half.display()));
    assert!(code == 6 && said.contains("half.ova"), "{code}: {said}");
    daemon.stop();
}

#[test]
fn an_export_that_fails_or_is_interrupted_leaves_neither_files_nor_snapshots() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    vm(&datastore, "native");
    datastore.json("vm disk add web 1M,mode=independent-persistent");
    let file = datastore.beside("x.raw");
    for (line, code, word) in [
        (format!("export web@no {}", file.display()), 4, "no"),
        (format!("export none {}", file.display()), 4, "none"),
        (format!("export web/disk9 {}", file.display()), 4, "vm show"),
        (format!("export web/disk2@a {}", file.display()), 3, "no part of snapshots"),
        (format!("export web@a {}", datastore.beside("x.iso").display()), 2, "--format"),
        (format!("export web@a {}/y.raw", file.display()), 4, "x.raw"),
    ] {
        let (found, said) = datastore.fails(&line);
        assert!(found == code && said.contains(word), "{line}: {found}: {said}");
    }
    // A slow disk, and Ctrl-C.
    datastore.json("vm set web --bandwidth 4M");
    let mut export = datastore.command(&["export", "web/disk0", file.to_str().unwrap()]);
    let mut child =
        export.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let part = datastore.beside("x.raw.unstun-part");
    crate::space::until("the export to begin", || part.exists().then_some(()));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!file.exists() && !part.exists());
    let tree = datastore.json("snapshot tree web");
    assert_eq!(tree["snapshots"].as_array().unwrap().len(), 1, "{tree}");
    assert_eq!(tree["snapshots"][0]["name"], json!("a"));
    // A full file system.
    if let Some(small) = crate::space::Mounted::empty("ext4", 48 << 20) {
        small.fill();
        let (code, said) =
            datastore.fails(&format!("export web/disk0@a {}", small.path().join("d.qcow2").display()));
        assert!(code == 1 && said.to_lowercase().contains("space"), "{code}: {said}");
        assert!(left(&small.path()).is_empty(), "{:?}", left(&small.path()));
    }
    daemon.stop();
}

#[test]
fn an_interrupted_export_is_continued_and_believes_no_byte() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let twins = vm(&datastore, "native");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 9 0 40M", &datastore.uri("web/disk1")]);
    datastore.json("snapshot take web b");
    let folder = datastore.beside("out");
    fs::create_dir(&folder).unwrap();
    let path = |name: &str| folder.join(name);
    let target = path("web.vmdk").display().to_string();
    let line = format!("export web@b {target} --format vmdk-flat --resume");
    // Killed when the second disk has some parts.
    datastore.json("vm set web --bandwidth 24M");
    let arguments: Vec<&str> = line.split(' ').collect();
    let mut child = datastore.command(&arguments).stderr(std::process::Stdio::null()).spawn().unwrap();
    let record = path("web-disk1-flat.vmdk.unstun-resume");
    crate::space::until("two parts of the second disk", || {
        fs::read_to_string(&record).is_ok_and(|text| text.lines().count() >= 3).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(path("web-disk0.vmdk").exists() && !path("web-disk1.vmdk").exists());
    datastore.json("vm set web --bandwidth none");
    let (code, said) = datastore.fails(&line.replace("web@b", "web@a"));
    assert!(code == 3 && said.contains("parts of web/disk0@b (snapshot ID"), "{code}: {said}");
    // A byte of the second part is another one by now: the first one counts.
    let part = fs::File::options().write(true).open(path("web-disk1-flat.vmdk.unstun-part")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&part, b"x", 20 << 20).unwrap();
    let exported = datastore.json(&line);
    let resumed: Vec<_> =
        exported["files"].as_array().unwrap().iter().map(|file| &file["resumed_bytes"]).collect();
    assert_eq!(resumed, [&json!(SIZE), &json!(16 << 20)], "{exported}");
    twins[0].assert_same_as("vmdk", path("web-disk0.vmdk").to_str().unwrap());
    let second = path("web-disk1.vmdk").display().to_string();
    let said = tool("qemu-io", &["-r", "-f", "vmdk", "-c", "read -P 9 0 40M", &second]);
    assert!(!said.contains("failed"), "{said}");
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["web-disk0-flat.vmdk", "web-disk0.vmdk", "web-disk1-flat.vmdk", "web-disk1.vmdk"]);
    for (line, code, word) in [
        (line.as_str(), 3, "exists already"),
        (&format!("export web {target}.raw --resume"), 2, "snapshot take web before-export"),
        (&format!("export web@b {target}.qcow2 --resume"), 2, "raw or vmdk-flat"),
    ] {
        let (found, said) = datastore.fails(line);
        assert!(found == code && said.contains(word), "{line}: {found}: {said}");
    }
    let single = path("single.raw");
    let exported = datastore.json(&format!("export web/disk0@b {} --resume", single.display()));
    assert_eq!(exported["files"][0]["resumed_bytes"], 0, "{exported}");
    twins[0].assert_same_as("raw", single.to_str().unwrap());
    daemon.stop();
}

/// Returns the files of an export in a folder.
fn left(folder: &Path) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.filter(|name| name.starts_with("d.qcow2")).collect()
}
