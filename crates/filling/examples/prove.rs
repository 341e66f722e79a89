use filling::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let read = |p: &str| graph::text::parse(&std::fs::read_to_string(p).unwrap()).unwrap();
    let (l, s) = (read(&a[1]), read(&a[2]));
    let mut lengths = vec![];
    for group in a[3].split(';') {
        let mut fills = vec![]; let mut sizes=(0,0);
        for f in group.split(',') {
            let (name, v) = f.split_once('=').unwrap();
            let id = l.find(name).unwrap();
            let graph::Source::Input{position,..} = l.tensor(id).source else { panic!() };
            sizes=(l.tensor(id).shape[1], s.tensor(id).shape[1]);
            fills.push(Fill{input: position, dim:1, value: v.parse().unwrap()});
        }
        lengths.push(Length{long:sizes.0, short:sizes.1, fills});
    }
    let t = std::time::Instant::now();
    let r = prove(&l,&s,&lengths);
    println!("{:?}", t.elapsed());
    match r { Ok(of) => { println!("proved"); for o in l.outputs.iter().flatten() { println!("{} {:?}", l.tensor(*o).name, of[o.index()]); } if a.len()>4 { for id in l.tensor_ids() { println!("{} {:?}", l.tensor(id).name, of[id.index()]); } } }, Err(e)=>println!("{e}") }
}
