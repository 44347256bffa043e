"""Lightning's Trainer: `lightning_ddp.py ddp|fsdp`."""

import sys

import lightning
import torch


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        wide = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
        self.net = torch.nn.Sequential(*wide)

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch), batch)
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = lightning.Trainer(
    accelerator="gpu",
    devices=8,
    strategy=sys.argv[1],
    max_steps=4,
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(512, 64), batch_size=8))
