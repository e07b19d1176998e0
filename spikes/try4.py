"""Histogram (simulated noise) -> marginal -> scale -> channel -> posterior, production code."""
import sys,time,numpy as np
sys.path.insert(0,'spikes')
from data2 import load, through
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.inference.values.marginal import Counted, refined, marginal_of
from tensorveil.inference.values.scale import scale_of
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms.parts.marginal import WHOLE_BOUNDS
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.privacy.bounds import Bounds
name,eps=sys.argv[1],float(sys.argv[2]); o=dict(a.split('=') for a in sys.argv[3:])
co,v,ct,vt,shape,b=load(name,bool(int(o.get('val',1)))); wide=float(o.get('wide',0)); b0=b
if wide: b=(b[0]-wide*(b[1]-b[0])/2,b[1]+wide*(b[1]-b[0])/2)
bounds=Bounds(*b); steps=bounds.steps(v); rng=np.random.default_rng(int(o.get('seed',7)))
share=min(max(4000/len(v),.02),.15) if np.isfinite(eps) else 0
rel=[]; first,last=WHOLE_BOUNDS[:-1],WHOLE_BOUNDS[1:]
for k in range(3):
    if rel:
        f,l=refined(rel,16)
        if len(f): first,last=f,l
    cnt=np.array([((steps>=a)&(steps<c)).sum() for a,c in zip(first,last)],float)
    sc=2/(eps*share/3) if share and 'exact' not in o else 1e-3
    rel.append(Counted(first,last,cnt+rng.laplace(0,sc,len(cnt)),2*sc**2))
mar=marginal_of(rel); sca=scale_of(mar,int(o.get('L',256 if np.isinf(eps) else 32)),b); L=len(sca.low)
print('scale: levels',L,'free',sca.free,'values',np.round(bounds.uncentred((sca.low+sca.high)/2),2)[:40],'error',mar.error,'ends',sca.ends.round(2),'cuts',sca.cuts[[0,-1]].round(2))
lev=np.searchsorted(sca.edges,steps,side='right')
R=int(o.get('rank',12)); t=time.time()
if np.isinf(eps): Q=np.eye(L)
else:
    numbers=sum(shape); ch=design_channel(sca,eps*(1-share),max(len(v)/numbers,.1)); Q=ch.chances
    if 'mine' in o:
        from chan import interval
        Q=interval(sca.cuts,eps*(1-share),n=float(o['mine']))
td=time.time()-t
sym=through(lev,Q,rng); t=time.time()
fam=CP(R) if o.get('model','cp')=='cp' else Tucker(tuple(min(5,s) for s in shape))
run=Posterior(sweeps=int(o['sweeps']) if 'sweeps' in o else None,chains=int(o.get('chains',4)),pattern=bool(int(o.get('pattern',1)))).solve(co,Released(sym,Q,sca,mar.error),fam,shape)
tt=time.time()-t
p=np.clip(bounds.uncentred(run.draws.predict(ct,run.offsets)),*b0)
lo,hi=[bounds.uncentred(x) for x in run.draws.interval(ct[:3000],run.offsets,.9)]
cov=((vt[:3000]>=lo-1e-6*(b[1]-b[0]))&(vt[:3000]<=hi+1e-6*(b[1]-b[0])))
q=np.argsort(p[:3000]); tenths=[round(float(cov[x].mean()),2) for x in np.array_split(q,10)]
rm=lambda x:float(np.sqrt(((x-vt)**2).mean()))
print(name,eps,sys.argv[3:],'RMSE %.4f'%rm(p),'mean %.4f'%rm(v.mean()),'ratio %.3f'%(rm(p)/rm(v.mean())),'cover %.3f'%cov.mean(),tenths,'mixing',run.draws.mixing.round(3),'Q',Q.shape,'design %.1fs'%td,'sample %.1fs'%tt,flush=True)
