from superserve import Sandbox

Sandbox.create(name="x").commands.run("true")
