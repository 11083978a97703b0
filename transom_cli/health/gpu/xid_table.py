"""NVIDIA's Xid catalogue as data, parsed by `xid`.

Codes, actions and names: NVIDIA's Xid catalogue r590 (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html),
as of 2025-10-29, without codes that it calls unused. Verdicts and remedies are ours:

- RESTART_APP, IGNORE: the program's fault or no fault: MONITOR.
- RESET_GPU, RESTART_BM (a reboot), RESTART_VM: NVIDIA says not to use the device any longer: FAIL.
- CHECK_MECHANICALS, and workflows in which the code alone does not show the cause: SUSPECT or MONITOR.
- XID_154: the log line names the action that the driver requests.
"""

# kind, code, name, action, verdict, remedy, note
TABLE = """\
xid,8,GPU stopped processing,RESTART_APP,monitor,restart_app,
xid,11,invalid or corrupted push buffer stream,RESTART_APP,monitor,restart_app,
xid,13,graphics engine exception,RESTART_APP,monitor,restart_app,
xid,25,invalid or illegal push buffer stream,RESTART_APP,monitor,restart_app,
xid,31,GPU memory page fault,RESTART_APP,monitor,restart_app,
xid,32,invalid or corrupted push buffer stream,RESTART_APP,monitor,restart_app,
xid,37,driver firmware error,IGNORE,monitor,none,
xid,38,driver firmware watchdog timeout,IGNORE,monitor,none,
xid,39,copy engine 0 exception,RESTART_APP,monitor,restart_app,
xid,40,copy engine 1 exception,RESTART_APP,monitor,restart_app,
xid,41,copy engine 2 exception,RESTART_APP,monitor,restart_app,
xid,43,GPU stopped processing a channel,IGNORE,monitor,none,
xid,44,graphics engine fault during context switch,IGNORE,monitor,none,
xid,45,preemptive cleanup after an earlier error,WORKFLOW_XID_45,monitor,restart_app,alone: restart the fabric manager
xid,46,GPU stopped processing,RESET_GPU,fail,reset_gpu,
xid,48,double-bit ECC error,WORKFLOW_XID_48,suspect,reset_gpu,171 and 172 tell where
xid,54,auxiliary power is not connected,CHECK_MECHANICALS,suspect,repair,
xid,60,video processor exception,RESTART_APP,monitor,restart_app,
xid,62,internal micro-controller halt,RESET_GPU,fail,reset_gpu,
xid,63,GPU memory remapping event,IGNORE,monitor,none,done; it takes effect with the next reset
xid,64,GPU memory remapping failure,RESET_GPU,fail,reset_gpu,A100: reboot
xid,66,illegal access by the driver,IGNORE,monitor,none,
xid,67,illegal access by the driver,IGNORE,monitor,none,
xid,68,video decoder 0 exception,RESTART_APP,monitor,restart_app,
xid,69,graphics engine class error,RESTART_APP,monitor,restart_app,
xid,70,copy engine 3 error,RESTART_APP,monitor,restart_app,
xid,71,copy engine 4 error,RESTART_APP,monitor,restart_app,
xid,72,copy engine 5 error,RESTART_APP,monitor,restart_app,
xid,74,NVLink error,WORKFLOW_NVLINK_ERR,suspect,reset_gpu,with an SXid: the NVSwitch
xid,75,copy engine 6 error,RESTART_APP,monitor,restart_app,
xid,76,copy engine 7 error,RESTART_APP,monitor,restart_app,
xid,77,copy engine 8 error,RESTART_APP,monitor,restart_app,
xid,78,vGPU start error,UPDATE_SWFW,monitor,setup,
xid,79,GPU has fallen off the bus,RESTART_BM,fail,reboot,
xid,80,corrupted data sent to the GPU,RESTART_APP,monitor,restart_app,
xid,82,JPEG engine 0 error,RESTART_APP,monitor,restart_app,
xid,83,video decoder 1 error,RESTART_APP,monitor,restart_app,
xid,84,video decoder 2 error,RESTART_APP,monitor,restart_app,
xid,85,copy engine 9 error,RESTART_APP,monitor,restart_app,
xid,86,optical flow exception,RESTART_APP,monitor,restart_app,
xid,88,video decoder 3 error,RESTART_APP,monitor,restart_app,
xid,89,video decoder 4 error,RESTART_APP,monitor,restart_app,
xid,92,high single-bit ECC error rate,IGNORE,monitor,none,
xid,93,InfoROM wear limit exceeded,IGNORE,monitor,none,
xid,94,contained memory error,RESTART_APP,monitor,restart_app,
xid,95,uncontained memory error,RESET_GPU,fail,reset_gpu,A100 without MIG: reboot
xid,96,video decoder 5 error,RESTART_APP,monitor,restart_app,
xid,97,video decoder 6 error,RESTART_APP,monitor,restart_app,
xid,98,video decoder 7 error,RESTART_APP,monitor,restart_app,
xid,99,JPEG engine 1 error,RESTART_APP,monitor,restart_app,
xid,100,JPEG engine 2 error,RESTART_APP,monitor,restart_app,
xid,101,JPEG engine 3 error,RESTART_APP,monitor,restart_app,
xid,102,JPEG engine 4 error,RESTART_APP,monitor,restart_app,
xid,103,JPEG engine 5 error,RESTART_APP,monitor,restart_app,
xid,104,JPEG engine 6 error,RESTART_APP,monitor,restart_app,
xid,105,JPEG engine 7 error,RESTART_APP,monitor,restart_app,
xid,106,SMBPBI test message,IGNORE,monitor,none,
xid,107,SMBPBI silent test message,IGNORE,monitor,none,
xid,109,context switch timeout,RESET_GPU,fail,reset_gpu,
xid,110,security fault,RESET_GPU,fail,reset_gpu,
xid,119,GSP RPC timeout,RESET_GPU,fail,reset_gpu,
xid,120,GSP error,RESET_GPU,fail,reset_gpu,
xid,121,C2C error,IGNORE,monitor,none,
xid,126,copy engine 10 error,RESTART_APP,monitor,restart_app,
xid,127,copy engine 11 error,RESTART_APP,monitor,restart_app,
xid,128,copy engine 12 error,RESTART_APP,monitor,restart_app,
xid,129,copy engine 13 error,RESTART_APP,monitor,restart_app,
xid,130,copy engine 14 error,RESTART_APP,monitor,restart_app,
xid,131,copy engine 15 error,RESTART_APP,monitor,restart_app,
xid,132,copy engine 16 error,RESTART_APP,monitor,restart_app,
xid,133,copy engine 17 error,RESTART_APP,monitor,restart_app,
xid,134,copy engine 18 error,RESTART_APP,monitor,restart_app,
xid,135,copy engine 19 error,RESTART_APP,monitor,restart_app,
xid,136,NVLink training failed,RESET_GPU,fail,reset_gpu,
xid,137,NVLink privilege error,IGNORE,monitor,none,
xid,139,optical flow 1 error,RESTART_APP,monitor,restart_app,
xid,140,unrecovered ECC error,RESET_GPU,fail,reset_gpu,
xid,141,CUDA fast path error,IGNORE,monitor,none,
xid,142,video encoder 3 error,CONTACT_SUPPORT,monitor,watch,
xid,143,GPU initialization error,RESET_GPU,fail,reset_gpu,
xid,144,NVLink SAW error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,145,NVLink RLW error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,146,NVLink TLW error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,147,NVLink TREX error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,148,NVLink NVLPW_CTRL error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,149,NVLink NETIR error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,150,NVLink MSE error,WORKFLOW_NVLINK5_ERR,monitor,watch,suspect where the line says Fatal
xid,151,key rotation error,RESTART_VM,fail,reboot,
xid,152,DLA SMMU error,IGNORE,monitor,none,
xid,153,DLA timeout,IGNORE,monitor,none,
xid,154,GPU recovery action changed,XID_154,suspect,watch,for a text that nobody knows
xid,155,NVLink software-defined error,RESET_GPU,fail,reset_gpu,
xid,156,resource retirement event,RESET_GPU,fail,reset_gpu,
xid,157,resource retirement failure,IGNORE,monitor,none,
xid,158,GPU fatal timeout,RESET_GPU,fail,reset_gpu,
xid,159,CHI non-data error,CHECK_UVM,suspect,reset_gpu,alone: report it
xid,160,channel retirement event,IGNORE,monitor,none,
xid,161,channel retirement failure,IGNORE,monitor,none,
xid,162,power smoothing re-engaged,,monitor,watch,the catalogue has no action
xid,163,power smoothing disengaged,,monitor,watch,the catalogue has no action
xid,164,power smoothing lifetime low,,monitor,watch,the catalogue has no action
xid,165,power smoothing lifetime exhausted,,monitor,watch,the catalogue has no action
xid,166,NVLink traffic before encryption was configured,,monitor,watch,the catalogue has no action
xid,167,PCIe fatal timeout,,suspect,reboot,the catalogue has no action
xid,168,reduced GPU memory capacity,RESTART_BM,fail,reboot,the write-protected region has errors
xid,169,security processor halt,,monitor,watch,the catalogue has no action
xid,170,interrupt in confidential-computing mode,,monitor,watch,the catalogue has no action
xid,171,uncorrectable DRAM error,,suspect,reset_gpu,detail of 48
xid,172,uncorrectable SRAM error,,suspect,reset_gpu,detail of 48
sxid,fatal,fatal NVSwitch error,RESET,suspect,reset_gpu,Fabric Manager user guide: GPUs and switches are reset together
sxid,non-fatal,non-fatal NVSwitch error,,monitor,watch,
"""
