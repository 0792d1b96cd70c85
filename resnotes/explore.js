(() => {
  "use strict";
  const text = (bytes) => new TextDecoder().decode(bytes);
  const bytes = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

  // The <img> shows a figure anywhere. Unfolded into the page its colours and its font
  // follow the reader's theme.
  function put(holder, svg, alt) {
    holder.innerHTML = svg;
    const drawing = holder.firstElementChild;
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", alt);
  }
  function unfold(holder) {
    const img = holder.querySelector("img");
    if (img) put(holder, text(bytes(img.src.split(",")[1])), img.alt);
  }

  async function unpack(root) {
    const packed = bytes(root.querySelector(".rn-frames").textContent.trim());
    const stream = new Blob([packed]).stream();
    const plain = stream.pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(plain).text());
  }

  function explorer(root) {
    const holder = root.querySelector(".rn-picture");
    const sentence = root.querySelector(".rn-sentence");
    const controls = [...root.querySelectorAll(".rn-control")].map((element) => ({
      element,
      size: Number(element.dataset.size),
      range: element.querySelector("input[type=range]"),
      select: element.querySelector("select"),
      output: element.querySelector("output"),
      labels: element.dataset.labels ? JSON.parse(element.dataset.labels) : [],
    }));
    const position = (c) =>
      Number((c.range || c.select || c.element.querySelector(":checked")).value);
    let frames = null;
    let shown = Number(root.dataset.frame);

    function draw() {
      const k = controls.reduce((sum, c) => sum * c.size + position(c), 0);
      if (k === shown) return;
      shown = k;
      put(holder, frames.svg[k], frames.text[k]);
      sentence.textContent = frames.text[k];
    }
    const ready = () =>
      (frames ??= unpack(root).then(
        (all) => { frames = all; return all; },
        () => { frames = null; sentence.textContent =
          "This browser cannot unpack the other pictures; a newer one can."; }));
    root.addEventListener("input", () => {
      for (const c of controls) {
        if (!c.range) continue;
        c.output.textContent = c.labels[position(c)];
        c.range.setAttribute("aria-valuetext", c.labels[position(c)]);
      }
      if (frames?.svg) draw();
      else ready().then((all) => all && draw());
    });
    return ready;
  }

  // Nothing is unfolded or unpacked before the reader comes near it.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      unfold(entry.target.querySelector(".rn-picture"));
      entry.target.rnReady?.();
    }
  }, { rootMargin: "400px" });

  for (const root of document.querySelectorAll(".rn-figure, .rn-explorer")) {
    if (root.dataset.on) continue;
    root.dataset.on = "1";
    root.classList.add("rn-live");
    if (root.matches(".rn-explorer")) root.rnReady = explorer(root);
    near.observe(root);
  }
})();
