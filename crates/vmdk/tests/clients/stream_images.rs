//! streamOptimized disks that QEMU and VMware wrote, disks of the test's writer as QEMU reads them, and OVAs made by GNU tar.
//!
//! The samples are public files that may not be redistributed: a folder beside the project's, `../shared/samples`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, ErrorKind, SECTOR};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use sim::Rng;
use vmdk::ova::Ova;
use vmdk::stream::{self, Stream};

use crate::stream_writer::{FORMS, Image};
use crate::support::{convert, qemu_img, run, scratch};

/// Not a multiple of a grain.
const BYTES: u64 = (70 << 20) + 3 * SECTOR;

/// Writes a raw file with runs of data at random places: half of it noise, half of it text that compresses.
fn raw_disk(path: &Path, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut content = vec![0; BYTES as usize];
    for _ in 0..40 {
        let sectors = [1, 8, 128, 300, 5000][rng.below(5) as usize];
        let at = rng.below(BYTES / SECTOR - sectors) * SECTOR;
        let part = &mut content[at as usize..(at + sectors * SECTOR) as usize];
        match rng.coin() {
            true => rng.fill(part),
            false => part.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8),
        }
    }
    rng.fill(&mut content[(BYTES - SECTOR) as usize..]);
    std::fs::write(path, &content).unwrap();
    content
}

/// Returns the content, by reads of `piece` bytes.
async fn content(disk: &Rc<Stream>, piece: u64) -> Vec<u8> {
    let mut content = Vec::new();
    for at in (0..disk.size_bytes()).step_by(piece as usize) {
        let len = piece.min(disk.size_bytes() - at);
        let (buf, result) = disk.clone().read(at, Buf::alloc(len as usize)).await;
        result.unwrap();
        content.extend_from_slice(&buf);
    }
    content
}

fn read(folder: &Path, name: &'static str, piece: u64) -> Vec<u8> {
    let folder = folder.to_path_buf();
    run(async move |env| {
        let dir = env.open_root(folder.to_str().unwrap()).unwrap();
        let file = dir.open(name, OpenMode::Read).await.unwrap();
        let bytes = file.size().await.unwrap();
        content(&stream::open(file, 0..bytes).await.unwrap(), piece).await
    })
}

fn to_stream(folder: &Path, raw: &str, name: &str) {
    qemu_img(folder, &["convert", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, name]);
}

#[test]
fn disks_that_qemu_wrote_read_as_their_source() {
    for seed in 1..4 {
        let (_guard, path) = scratch();
        let raw = raw_disk(&path.join("disk.raw"), seed);
        to_stream(&path, "disk.raw", "web.vmdk");
        for piece in [4096, 100 * SECTOR, 16 << 20] {
            let found = read(&path, "web.vmdk", piece);
            assert!(found[..raw.len()] == raw, "seed {seed}, reads of {piece} bytes");
            assert!(found[raw.len()..].iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn disks_of_the_tests_read_as_qemu_reads_them() {
    for (seed, form) in (1..).zip(FORMS) {
        let (_guard, path) = scratch();
        let mut image = Image::new(300 * 128, 128, form);
        // QEMU looks for the descriptor in its usual length, and for the grains behind it.
        (image.text_sectors, image.overhead_min) = (20, 128);
        let mut rng = Rng::new(seed);
        for grain in 0..300 {
            let mut data = vec![(grain % 255) as u8; 128 * SECTOR as usize];
            match rng.below(3) {
                0 => continue,
                1 => rng.fill(&mut data),
                _ => {}
            }
            image.data(grain, &data);
        }
        std::fs::write(path.join("web.vmdk"), image.build().bytes).unwrap();
        let expected = convert(&path, "web.vmdk");
        assert!(read(&path, "web.vmdk", 1 << 20) == expected, "{form:?}");
    }
}

#[test]
fn a_disk_of_vmwares_tool_reads_as_its_source() {
    let packed =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples/streamOptimized.vmdk.gz");
    let Ok(packed) = std::fs::File::open(packed) else {
        println!("skipped: the samples are not here");
        return;
    };
    let (_guard, path) = scratch();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    std::fs::write(path.join("web.vmdk"), bytes).unwrap();
    let digits: String =
        Sha1::digest(read(&path, "web.vmdk", 64 << 10)).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digits, "dd2fade471d68658b2ebbff7474f5d0a99da8989");
}

fn tar(folder: &Path, options: &[&str], name: &str) {
    let members = ["web.ovf", "web.mf", "web-disk1.vmdk"];
    let output =
        Command::new("tar").args(options).arg("-cf").arg(name).args(members).current_dir(folder).output();
    let output = output.expect("GNU tar");
    assert!(output.status.success(), "{output:?}");
}

fn descriptor(disk_bytes: u64) -> String {
    format!(
        r#"<Envelope xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"><References><File ovf:href="web-disk1.vmdk" ovf:id="f" ovf:size="{disk_bytes}"/></References>
        <DiskSection><Disk ovf:capacity="{BYTES}" ovf:diskId="d" ovf:fileRef="f"/></DiskSection><VirtualSystem ovf:id="web"><VirtualHardwareSection>
        <Item><InstanceID>1</InstanceID><ResourceType>6</ResourceType></Item>
        <Item><AddressOnParent>0</AddressOnParent><HostResource>ovf:/disk/d</HostResource><InstanceID>2</InstanceID><Parent>1</Parent><ResourceType>17</ResourceType></Item>
        </VirtualHardwareSection></VirtualSystem></Envelope>"#
    )
}

#[test]
fn ovas_that_tar_made_are_read() {
    let (_guard, path) = scratch();
    let raw = raw_disk(&path.join("disk.raw"), 9);
    to_stream(&path, "disk.raw", "web-disk1.vmdk");
    let disk = std::fs::read(path.join("web-disk1.vmdk")).unwrap();
    let digits: String = Sha256::digest(&disk).iter().map(|b| format!("{b:02x}")).collect();
    std::fs::write(path.join("web.ovf"), descriptor(disk.len() as u64)).unwrap();
    std::fs::write(path.join("web.mf"), format!("SHA256(web-disk1.vmdk)= {digits}\n")).unwrap();
    let long = ["--transform=s,^,./,"];
    for options in [&["--format=gnu"][..], &["--format=ustar"], &["--format=pax"], &["--format=v7"], &long] {
        tar(&path, options, "web.ova");
        let (folder, raw) = (path.clone(), raw.clone());
        run(async move |env| {
            let dir = env.open_root(folder.to_str().unwrap()).unwrap();
            let ova = Ova::open(dir.open("web.ova", OpenMode::Read).await.unwrap()).await.unwrap();
            assert_eq!((ova.name.as_str(), ova.disks.len()), ("web", 1));
            assert_eq!(ova.disks[0].attachment.as_ref().unwrap().unit, Some(0));
            let mut read = Vec::new();
            let progress = async |bytes| {
                read.push(bytes);
                Ok(())
            };
            ova.verify("web-disk1.vmdk", progress).await.unwrap();
            assert!(read.windows(2).all(|pair| pair[1] - pair[0] <= 1 << 20) && read.len() > 1);
            let disk = ova.open_disk(&ova.disks[0]).await.unwrap();
            assert!(content(&disk, 1 << 20).await == raw);
        });
    }
    let whole = std::fs::read(path.join("web.ova")).unwrap();
    std::fs::write(path.join("web.ova"), &whole[..whole.len() / 2]).unwrap();
    run(async move |env| {
        let dir = env.open_root(path.to_str().unwrap()).unwrap();
        let error = Ova::open(dir.open("web.ova", OpenMode::Read).await.unwrap()).await.err().unwrap();
        assert!(error.kind == ErrorKind::Damaged && error.cause.contains("the archive was cut"), "{error}");
    });
}
