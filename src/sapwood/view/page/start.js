// Everything begins, top to bottom.

function beginTheme() {
  const { style } = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const now = style.colorScheme || (system.matches ? "dark" : "light");
    style.colorScheme = now === "dark" ? "light" : "dark";
  });
}

// Each section's name is said once, in the page: here it becomes its title and its link.
function beginSections() {
  const sections = [...document.querySelectorAll("section[id]")];
  const named = sections.map((section) => [section, section.getAttribute("aria-label")]);
  fill("sections", named.map(([{ id }, name]) => make("a", { href: `#${id}` }, name)));
  for (const [section, name] of named) {
    section.prepend(make("h2", {}, name), make("p", { class: "lede", id: `${section.id}-lede` }));
  }
}

beginTheme();
beginSections();
summarise();
beginFunctions();
beginTimeline();
beginMemory();
beginList();
watch(["recording"], tellRecording);
beginPages();
watch(["function"], paintMisses);
beginStore();
beginEvents();
fill("foot", `Drawn from a snapshot of schema ${snapshot.schema}. This page is whole: it asks nothing of the network.`);
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
